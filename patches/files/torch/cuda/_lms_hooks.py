"""Hooks on Python functions of PyTorch, in place while Large Model Support is on.

The engine sees operators. What else reaches the bytes of a storage, or lets its
address escape, passes through here.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch

from . import _lms_launches, _lms_log, _lms_snapshot

# Who asks an `UntypedStorage` for its address wants to tell storages apart, and
# gets an address that can be compared and is no memory (Note [Addresses to
# compare] in LMSDevice.cpp), so that saving a model, say, does not make all of
# it unreclaimable. Who asks a tensor, or a storage of the deprecated kind, may
# hand the address to a kernel, except for these.
_IDENTITY_CALLERS = {
    ("torch.serialization", None),
    ("torch.storage", None),
    ("torch.nn.modules.rnn", None),
    ("torch._tensor", "__deepcopy__"),
    ("torch._dynamo.utils", None),
    ("torch._inductor.utils", None),
    ("torch.export.pt2_archive._package_weights", None),
    ("torch.distributed.fsdp._fully_shard._fsdp_param", None),
    ("torch.distributed.checkpoint._state_dict_stager", None),
    ("safetensors.torch", None),
    ("transformers.modeling_utils", None),
    ("transformers.pytorch_utils", None),
    ("transformers.trainer", None),
    ("accelerate.accelerator", None),
    ("accelerate.big_modeling", None),
    ("accelerate.hooks", None),
    ("accelerate.utils.modeling", None),
}

# Functions of torch._C that call NCCL on a process's own devices, as DataParallel does.
_NCCL_CALLS = (
    "_broadcast",
    "_broadcast_coalesced",
    "_broadcast_out",
    "_nccl_all_gather",
    "_nccl_all_reduce",
    "_nccl_broadcast",
    "_nccl_reduce",
    "_nccl_reduce_scatter",
)

# Classes of torch._C._aoti, and methods, that run a model of AOTInductor's: it launches unseen.
_PACKAGED = (
    ("AOTIModelPackageLoader", "boxed_run"),
    ("AOTIModelPackageLoader", "run"),
    ("AOTIModelContainerRunnerCuda", "run"),
)

_undo: list[Callable[[], None]] = []


def _wants_identity(asked: Any) -> bool:
    frame, is_typed = sys._getframe(2), False
    while True:
        module, function = frame.f_globals.get("__name__"), frame.f_code.co_name
        if module != "torch.storage" or function not in ("data_ptr", "_data_ptr"):
            break
        assert frame.f_back is not None
        frame, is_typed = frame.f_back, True  # a TypedStorage asks for somebody else
    if isinstance(asked, torch.UntypedStorage) and not is_typed:
        return True
    return (module, None) in _IDENTITY_CALLERS or (module, function) in _IDENTITY_CALLERS


def storage_of(obj: Any) -> torch.UntypedStorage | None:
    """The CUDA storage behind a tensor or storage, if it has one."""
    if obj.device.type != "cuda":
        return None
    if isinstance(obj, torch.UntypedStorage):
        return obj
    try:
        storage = obj.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None  # sparse, wrapper subclass
    return storage if storage.device.type == "cuda" else None  # a fake tensor's has no bytes


def _flat(arguments: Iterable[Any]) -> list[Any]:
    """The arguments, and what is in those that are lists."""
    return [
        item for arg in arguments for item in (arg if isinstance(arg, (list, tuple)) else [arg])
    ]


def _storages_of(arguments: Iterable[Any]) -> list[torch.UntypedStorage]:
    """The CUDA storages behind the tensors and storages among the arguments."""
    kinds = (torch.Tensor, torch.UntypedStorage)
    owners = (item for item in _flat(arguments) if isinstance(item, kinds))
    return [storage for storage in map(storage_of, owners) if storage is not None]


def _hook(owner: Any, name: str, make: Callable[[Callable[..., Any]], Any]) -> None:
    """Replaces an attribute by ``make(original)`` until the hooks are removed."""
    original = getattr(owner, name)
    is_inherited = name not in vars(owner)
    setattr(owner, name, wraps(original)(make(original)))

    def undo() -> None:
        if is_inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, original)

    _undo.append(undo)


def _hold(storage: torch.UntypedStorage) -> None:
    """The address is known outside from here on."""
    torch.ops.lms.hold(storage)
    _lms_log.tell_of_address(storage)


def _address_hook(original: Callable[[Any], int]) -> Callable[[Any], int]:
    def data_ptr(self: Any) -> int:
        for pinned in _lms_launches.here.tensors:
            if pinned is self:
                return original(self)
        storage = storage_of(self)
        if storage is not None and storage.nbytes() > 0:
            if _wants_identity(self):
                torch.ops.lms.adopt(storage)
                address = torch.ops.lms.identity(storage)
                offset = 0
                if isinstance(self, torch.Tensor):
                    offset = self.storage_offset() * self.element_size()
                return address + offset if address else original(self)
            _hold(storage)
        return original(self)

    return data_ptr


def _escape_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    """For calls after which the address is known outside: holds the storage."""

    def escape(self: Any, *args: Any, **kwargs: Any) -> Any:
        storage = storage_of(self)
        if storage is not None:
            _hold(storage)
        return original(self, *args, **kwargs)

    return escape


def _pin_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    """For calls that look at storages, or read and write their bytes, outside operators."""

    def with_bytes(*args: Any, **kwargs: Any) -> Any:
        with torch.cuda.lms.pin(*_storages_of((*args, *kwargs.values()))):
            return original(*args, **kwargs)

    return with_bytes


def _nccl_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    """For calls of NCCL, which take the addresses of tensors and of what they make of them.

    What they queue on the current streams is known to LMS, what they queue on others is not.
    """

    def call(*args: Any) -> Any:
        storages = _storages_of(args)
        if any(isinstance(item, torch.cuda.Stream) for item in _flat(args)):
            for storage in storages:
                _hold(storage)
        with torch.cuda.lms.pin(*storages):
            return original(*args)

    return call


def _getitem_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    by_value, by_address = _pin_hook(original), _escape_hook(original)

    def getitem(self: torch.UntypedStorage, index: Any) -> Any:
        # A slice of a storage is a storage on the same address.
        return (by_address if isinstance(index, slice) else by_value)(self, index)

    return getitem


def _alias_hook(original: Callable[..., bool]) -> Callable[..., bool]:
    def is_alias_of(first: torch.Tensor, second: torch.Tensor) -> bool:
        storages = storage_of(first), storage_of(second)
        if None in storages:
            return original(first, second)
        # A storage that LMS manages shares its memory with no other.
        return storages[0]._cdata == storages[1]._cdata  # type: ignore[union-attr]

    return is_alias_of


def _release_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    """For calls that work on storages themselves: LMS lets go of them first."""

    def with_native_storage(*args: Any, **kwargs: Any) -> Any:
        for obj in (*args, *kwargs.values()):
            if isinstance(obj, torch.UntypedStorage) and obj.device.type == "cuda":
                torch.ops.lms.release(obj)
        return original(*args, **kwargs)

    return with_native_storage


def _graph_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    """For calls that make and fill the generators' numbers that random operators of graphs read.

    These operators take their addresses, so they are not adopted.
    """

    def with_native_numbers(*args: Any, **kwargs: Any) -> Any:
        torch.ops.lms.pause_adoption()
        try:
            return original(*args, **kwargs)
        finally:
            torch.ops.lms.resume_adoption()

    return with_native_numbers


def _capture_end_hook(original: Callable[..., None]) -> Callable[..., None]:
    def capture_end(*args: Any) -> None:
        original(*args)
        _lms_log.tell_of_capture()

    return capture_end


def _thread_hook(original: Callable[..., None]) -> Callable[..., None]:
    def start(self: threading.Thread) -> None:
        run = self.run

        def run_with_lms() -> None:
            del self.run  # type: ignore[method-assign]
            torch.cuda.lms.enable_thread()
            run()

        self.run = run_with_lms  # type: ignore[method-assign]
        original(self)

    return start


# What a thread runs of a backward pass: at::cuda::lms::AutogradScope.
_IN_BACKWARD = 1
_IN_FUNCTION = 2


def _let_cross(tensors: Iterable[Any]) -> None:
    """Gradients may go to another stream; see Note [Gradients that cross streams]."""
    for storage in _storages_of(obj for obj in tensors if isinstance(obj, torch.Tensor)):
        torch.ops.lms.let_cross(storage)


def _backward_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    def run_backward(outputs: Any, gradients: Any, *args: Any, **kwargs: Any) -> Any:
        _lms_log.look()
        ops = torch.ops.lms
        ops.begin_backward()
        scope = ops.set_autograd_scope(_IN_BACKWARD)
        try:
            if ops.uses_several_streams():
                _let_cross(gradients)
            return original(outputs, gradients, *args, **kwargs)
        finally:
            ops.set_autograd_scope(scope)
            ops.end_backward()

    return run_backward


def _function_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, *args: Any) -> Any:
        ops = torch.ops.lms
        if not ops.uses_several_streams():
            return original(self, *args)
        scope = ops.set_autograd_scope(_IN_FUNCTION)
        try:
            gradients = original(self, *args)
        finally:
            ops.set_autograd_scope(scope)
        _let_cross(gradients if isinstance(gradients, tuple) else (gradients,))
        return gradients

    return apply


def _profiler_hook(is_on: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """For the start or end of a profiler, which may look at addresses while it runs."""

    def hook(original: Callable[..., Any]) -> Callable[..., Any]:
        def switch(*args: Any, **kwargs: Any) -> Any:
            if is_on:
                torch.ops.lms.set_profiled(True)
            try:
                return original(*args, **kwargs)
            finally:
                if not is_on:
                    torch.ops.lms.set_profiled(False)

        return switch

    return hook


def _group_begin_hook(original: Callable[..., None]) -> Callable[..., None]:
    """For the beginning of a group of collectives that are launched together."""

    def begin(*args: Any, **kwargs: Any) -> None:
        torch.ops.lms.begin_group()
        try:
            original(*args, **kwargs)
        except BaseException:
            torch.ops.lms.end_group(None)
            raise

    return begin


def _group_end_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    """For the end of such a group: its Work says when they have completed."""

    def end(*args: Any, **kwargs: Any) -> Any:
        work = None
        try:
            work = original(*args, **kwargs)
        finally:
            torch.ops.lms.end_group(None if work is None else work.boxed())
        return work

    return end


def _keys_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    """For the choice of a kernel in Python, as for `torch.cond`.

    Operators that take functions have no bytes to bring, and no kernel for LMS's keys; the
    operators of those functions come by.
    """
    # These have no names in torch._C.DispatchKey (LMSOperators.h).
    keys = [torch._C._dispatch_key_parse(name) for name in ("FPGA", "Fake")]

    def key_extractor(tensors: Any, key_mask: Any) -> Any:
        for key in keys:
            key_mask = key_mask.remove(key)
        return original(tensors, key_mask)

    return key_extractor


def _install_for_good() -> None:
    """What stays when LMS is turned off, which another thread may do.

    Threads that LMS saw keep its keys, and groups of collectives may be open.
    """
    if hasattr(torch._ops.key_extractor, "__wrapped__"):
        return
    _hook(torch._ops, "key_extractor", _keys_hook)
    if torch.distributed.is_available():
        group = torch.distributed.ProcessGroup
        _hook(group, "_start_coalescing", _group_begin_hook)
        _hook(group, "_end_coalescing", _group_end_hook)
    _undo.clear()


def install() -> None:
    _install_for_good()
    for owner in (torch.Tensor, torch.UntypedStorage):
        _hook(owner, "data_ptr", _address_hook)
    _hook(torch.Tensor, "__dlpack__", _escape_hook)
    _hook(torch, "to_dlpack", _escape_hook)
    _hook(torch._C, "_data_address", _escape_hook)
    _hook(torch.utils.dlpack, "to_dlpack", _escape_hook)
    for name in ("copy_", "fill_", "__setitem__", "_set_from_file", "_write_file"):
        _hook(torch.UntypedStorage, name, _pin_hook)
    _hook(torch.UntypedStorage, "__getitem__", _getitem_hook)
    for name in ("resize_", "_share_cuda_", "_swap_data_ptr_"):  # the last is new in 2.12
        if hasattr(torch.UntypedStorage, name):
            _hook(torch.UntypedStorage, name, _release_hook)
    _hook(torch._C, "_is_alias_of", _alias_hook)
    _hook(torch._C, "_is_cow_tensor", _pin_hook)
    guards = torch._C._dynamo.guards
    for name in ("copy_misaligned", "copy_if_misaligned"):  # what compiled functions are given
        if hasattr(guards, name):  # 2.12 has the one, 2.15 the other
            _hook(guards, name, _pin_hook)
    for owner, name in _PACKAGED:
        if hasattr(getattr(torch._C._aoti, owner, None), name):
            _hook(getattr(torch._C._aoti, owner), name, _pin_hook)
    for name in _NCCL_CALLS:
        _hook(torch._C, name, _nccl_hook)
    for name in ("capture_begin", "replay", "register_generator_state"):
        _hook(torch.cuda.CUDAGraph, name, _graph_hook)
    _hook(torch.cuda.CUDAGraph, "capture_end", _capture_end_hook)
    _hook(threading.Thread, "start", _thread_hook)
    for module in (torch.autograd, torch.autograd.graph):
        _hook(module, "_engine_run_backward", _backward_hook)
    _hook(torch.autograd.function.BackwardCFunction, "apply", _function_hook)
    _hook(torch.cuda.memory, "_snapshot", _lms_snapshot.hook)
    profiler = torch.autograd.profiler
    _hook(profiler, "_enable_profiler", _profiler_hook(is_on=True))
    _hook(profiler, "_disable_profiler", _profiler_hook(is_on=False))
    torch.ops.lms.set_profiled(profiler._is_profiler_enabled)
    _lms_launches.install(_hook)


def remove() -> None:
    _lms_launches.remove()
    while _undo:
        _undo.pop()()
