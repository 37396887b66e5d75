r"""Large Model Support: train models that are larger than the GPU's memory.

One call turns it on, before or after the model is made::

    torch.cuda.set_enabled_lms(True)

From then on the storages that no running operator needs are moved to host
memory when device memory runs short, and come back before they are used. The
program is otherwise unchanged, and so are its results, to the last bit.

Environment variables, read when CUDA is initialized:

- ``PYTORCH_LMS``: ``1`` enables LMS, ``chaos`` also pages out every unpinned
  storage after every operator (for tests).
- ``PYTORCH_LMS_LIMIT``: bytes of device memory, such as 4G, see :func:`set_limit_lms`.
- ``PYTORCH_LMS_HOST_LIMIT``: bytes of host memory, see :func:`set_host_limit`.
- ``PYTORCH_LMS_DISK``: a folder and bytes on its disk, such as ``/fast/folder:800G``, see
  :func:`set_disk`.
- ``PYTORCH_LMS_HOST_LEDGER``: the file in which the processes that share that limit keep
  account, or ``none``; by default one per user in ``/dev/shm``, or else in ``/tmp``. Beside it
  there is one for each card, for those that share it; with ``none`` nobody gives way.
- ``PYTORCH_LMS_TRACE``: a file, replaced if it exists. LMS writes what it sees of device 0
  there, one JSON object per line, for ``lms trace replay``. One process per file.
- ``PYTORCH_LMS_CONF``: ``policy:planned`` (the default) or ``policy:original``, which
  pages like the first Large Model Support: by least recent use, on demand, blocking
  the host. For comparisons. ``recompute:off``, see :func:`set_recompute`.

Messages go to the logger ``torch.cuda.lms``.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from . import _lms_hints, _lms_hooks, _lms_log
from ._lms_hints import ByName, ByType, Hint, LayerByLayer, OnShortage, Policy
from ._lms_library import engine, is_loaded
from ._lms_log import logger
from ._lms_metrics import metrics
from ._lms_report import report
from ._lms_stats import device_index, stats

if TYPE_CHECKING:
    from torch.types import Device

    from ._lms_hints import Hints
    from ._lms_host_step import SteppingOnHost
    from ._lms_stepping import SteppingInBackward

_LETTING_GO = 0.02  # seconds at exit

__all__ = [
    "ByName",
    "ByType",
    "Hint",
    "LayerByLayer",
    "OnShortage",
    "Policy",
    "enable_thread",
    "get_disk",
    "get_enabled_lms",
    "get_host_limit",
    "get_limit_lms",
    "get_recompute",
    "get_size_lms",
    "hint",
    "install_module_method",
    "is_available",
    "is_resident",
    "load",
    "metrics",
    "pin",
    "reclaim_inactive",
    "report",
    "save",
    "set_disk",
    "set_enabled_lms",
    "set_host_limit",
    "set_limit_lms",
    "set_recompute",
    "set_size_lms",
    "stats",
    "step",
    "step_in_backward",
    "step_on_host",
]

for _public in (
    *(metrics, report, stats),
    *(ByName, ByType, Hint, LayerByLayer, OnShortage, Policy),
):
    _public.__module__ = __name__  # where they are public

# Where the submodule `jobs` is.
__path__ = [os.path.join(os.path.dirname(__file__), "_lms_jobs")]

_switching = threading.Lock()  # around turning on and off
_here = threading.local()  # in a job's thread: the job, and what ends its step


def __getattr__(name: str) -> Any:
    if name == "jobs":  # imported when it is first used
        return importlib.import_module(f"{__name__}.jobs")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def is_available() -> bool:
    r"""Return whether LMS can be enabled here: a CUDA device and the engine are present."""
    if not torch.cuda.is_available():
        return False
    try:
        engine()
    except (OSError, RuntimeError) as error:
        logger.debug("not available: %s", error)
        return False
    return True


def _bytes(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an int (bytes), got {type(value).__name__}")
    if not 0 <= value < 1 << 63:
        raise ValueError(f"{what} must be between 0 and 2**63 - 1, got {value}")
    return value


def set_enabled_lms(enabled: bool) -> None:
    r"""Turn Large Model Support on or off.

    Tensors that exist already are managed as well. Turning it off brings every
    paged-out storage back.

    It covers the calling thread, the threads of autograd, and Python threads
    started later. A thread that runs already calls :func:`enable_thread`.

    Args:
        enabled (bool): whether storages may be paged out.

    Raises:
        TypeError: if ``enabled`` is no bool.
        torch.cuda.OutOfMemoryError: on turning off, if the storages do not fit
            on the device together. LMS is then still on and nothing is lost.
        RuntimeError: if the process does not use PyTorch's native caching
            allocator, or the engine is missing.
    """
    if enabled not in (True, False):
        raise TypeError(f"enabled must be a bool, got {type(enabled).__name__}: {enabled!r}")
    with _switching:
        ops = engine()
        if enabled and torch.cuda.device_count() == 0:
            warnings.warn(
                "Large Model Support has nothing to do: there is no CUDA device", stacklevel=2
            )
        if bool(enabled) == ops.is_enabled():
            ops.enable_thread()
            return
        try:
            ops.set_enabled(bool(enabled))
        except torch.cuda.OutOfMemoryError as error:
            raise torch.cuda.OutOfMemoryError(
                "Large Model Support stays on: the storages on the host do not fit on the "
                f"device together. Free tensors and try again. {error}"
            ) from None
        if enabled:
            _end_threads_at_exit()
            _lms_hooks.install()
            _lms_log.begin()
            _adopt_existing(ops)
            _lms_hints.give_again()
        else:
            _lms_hooks.remove()
        logger.info("%s", "enabled" if enabled else "disabled")


@functools.cache
def _end_threads_at_exit() -> None:
    """Lets threads finish before the interpreter ends, whose lock they may need."""
    atexit.register(_end_threads)


def _end_threads() -> None:
    """Ends the thread that gives way to others, and waits for those of autograd.

    They may not have let go of the pass that has just ended. Since PyTorch 2.15 each pass has a
    Python object, and a thread that frees one while the interpreter ends aborts the process.
    """
    engine().stop_sharing()
    time.sleep(_LETTING_GO)


def _adopt_existing(ops: Any) -> None:
    """Makes the tensors that Python knows reclaimable before an operator touches them.

    Where CUDA graphs have been captured they stay on the device: graphs have addresses.
    """
    if not torch.cuda.is_initialized():
        return
    objects = gc.get_objects()
    has_graphs = any(issubclass(type(obj), torch.cuda.CUDAGraph) for obj in objects)
    for obj in objects:
        if issubclass(type(obj), torch.Tensor):
            storage = _lms_hooks.storage_of(obj)
            if storage is not None:
                ops.adopt(storage)
                if has_graphs:
                    ops.hold(storage)
    if has_graphs:
        _lms_log.tell_of_capture(is_earlier=True)
    ops.apply_limits()  # what they hold beyond the limit can leave now


def get_enabled_lms() -> bool:
    r"""Return whether Large Model Support is on."""
    return is_loaded() and engine().is_enabled()


def enable_thread() -> None:
    r"""Let LMS see the operators of the calling thread.

    Needed only in a thread that was started before LMS was enabled, or that
    Python's :mod:`threading` does not know.
    """
    if get_enabled_lms():
        engine().enable_thread()


def set_limit_lms(limit: int, device: Device = None) -> None:
    r"""Set how much device memory the caching allocator may reserve with LMS on.

    Args:
        limit (int): bytes. 0 restores the default: 95 % of what the device has
            free, what is reserved already and what other processes with LMS
            would give, as that changes. If more is reserved now, storages are paged out and the
            rest is given back to the driver. A limit other than the default
            sinks by itself only if the driver refuses memory below it.
        device (torch.device or int, optional): the device; every device if None.

    Raises:
        TypeError, ValueError: if the limit is no number of bytes, or there is
            no such device.
    """
    limit = _bytes(limit, "limit")
    if device is None:
        engine().set_default_limit(limit)
    else:
        torch.cuda.init()
        engine().set_limit(device_index(device), limit)


def get_limit_lms(device: Device = None) -> int:
    r"""Return the limit in bytes; of the current device if ``device`` is None.

    It is what is in force: the limit may change with what the device has free.
    """
    torch.cuda.init()
    return engine().get_limit(device_index(device))


def set_size_lms(size: int) -> None:
    r"""Set the size in bytes of the smallest storage that LMS manages.

    In the original LMS this was a tuning knob; here it seldom needs changing.
    Storages that are managed already stay so, and one that is used on another
    stream than that of its allocation is managed whatever its size.
    """
    engine().set_min_bytes(_bytes(size, "size"))


def get_size_lms() -> int:
    r"""Return the size in bytes of the smallest storage that LMS manages."""
    return engine().get_min_bytes()


def set_host_limit(limit: int) -> None:
    r"""Set how much host memory paged-out storages may take, all devices together.

    The limit is for all processes of the user on this host: this one takes no
    more once they have so much together. Each process has its own limit. Processes
    that do not share ``/dev/shm``, and those of other users, count apart.

    Args:
        limit (int): bytes. 0 restores the default: 80 % of the memory that is
            available on the host when it is first needed, or of what the limits
            of the container (cgroups) leave if that is less, and of what the
            processes have taken. Memory in use already is kept.
    """
    engine().set_host_limit(_bytes(limit, "limit"))


def get_host_limit() -> int:
    r"""Return the limit of host memory in bytes."""
    return engine().stats(0)["lms.host_bytes.limit"]


def set_disk(folder: str | os.PathLike[str] | None, limit: int = 0) -> None:
    r"""Let storages go to a disk when the memory of the host is spent.

    What is needed farthest in the future goes from host memory to a file in the folder, and comes
    back before it is needed. The file has no name and is gone when the process ends, however it
    ends. It is read and written past the page cache. Smaller storages than 1 MiB stay in host
    memory. If a write fails, storages stay in host memory from then on, with a warning; if a read
    fails, the operator that needs the bytes raises ``RuntimeError``, and may be tried again.

    Args:
        folder (path): on a local disk, and better an SSD. None: storages go to no disk any more;
            what is there stays until it is written to or dies.
        limit (int): bytes on the disk that all processes of the user may take in this folder
            together.

    Raises:
        TypeError, ValueError: if ``folder`` is no path, or ``limit`` no number of bytes above 0.
        RuntimeError: if no file can be made, written and read there without the page cache, or less
            than ``limit`` is free. Storages go where they went before.
    """
    if folder is None:
        engine().set_disk("", 0)
        return
    path = os.fspath(folder)
    if not isinstance(path, str):
        raise TypeError(f"folder must be a path as text, got {type(path).__name__}")
    if _bytes(limit, "limit") == 0:
        raise ValueError("limit must be the bytes that storages may take on the disk, got 0")
    engine().set_disk(os.path.abspath(path), limit)


def get_disk() -> tuple[str, int] | None:
    r"""Return the folder where storages go when host memory is spent, and the limit in bytes."""
    folder = engine().get_disk()
    return (folder, engine().stats(0)["lms.disk_bytes.limit"]) if folder else None


def set_recompute(enabled: bool) -> None:
    r"""Set whether bytes may be computed again instead of being copied to the host and back.

    What an operator made is dropped where running it again takes less time than the copies
    do. Only operators without side effects run again, on the same bytes and with the same
    settings, so results do not change. On by default; see ``PYTORCH_LMS_CONF``.

    Args:
        enabled (bool): what has been dropped is made again in any case.
    """
    engine().set_recompute(bool(enabled))


def get_recompute() -> bool:
    r"""Return whether bytes may be computed again instead of being copied."""
    return engine().get_recompute()


def reclaim_inactive() -> None:
    r"""Page out every storage that no running operator needs, on every device."""
    if get_enabled_lms():
        engine().reclaim_inactive()


def is_resident(tensor: torch.Tensor) -> bool:
    r"""Return whether the tensor's storage is on its device (not in host memory)."""
    storage = _storage_argument(tensor)
    return not is_loaded() or engine().is_resident(storage)


def _storage_argument(obj: Any) -> torch.UntypedStorage:
    if isinstance(obj, torch.UntypedStorage):
        return obj
    if isinstance(obj, torch.Tensor):
        return obj.untyped_storage()
    raise TypeError(f"expected a torch.Tensor or torch.UntypedStorage, got {type(obj).__name__}")


@contextmanager
def pin(*tensors: torch.Tensor | torch.UntypedStorage) -> Iterator[None]:
    r"""Keep tensors on their devices while the context is open.

    For calls into code that takes addresses and is not a PyTorch operator, such
    as an extension built against upstream's headers. Tensors that are made in
    the context by this thread are left alone as well until it closes.

    Raises:
        torch.cuda.OutOfMemoryError: if the tensors do not fit together. Nothing
            is pinned then.
    """
    # The storages are referenced until the pins are given back.
    storages = [_storage_argument(tensor) for tensor in tensors]
    if not get_enabled_lms():
        yield
        return
    ops = engine()
    pins: list[int] = []
    try:
        for storage in storages:
            pins.append(ops.pin(storage))
        ops.pause_adoption()
        try:
            yield
        finally:
            ops.resume_adoption()
    finally:
        for handle in pins:
            ops.unpin(handle)


# --- hints ---


def hint(
    what: torch.nn.Module | torch.Tensor | Iterable[torch.Tensor],
    *,
    keep: bool = False,
    page: bool = False,
    recompute: bool | None = None,
    host: bool = False,
    activations: bool = False,
) -> Hints:
    r"""Say what should stay on the device, what should leave first, what should be made again.

    Hints direct the plan, and nothing else: results are the same, and where memory is short of
    what they ask for it wins, with a warning to the logger ``torch.cuda.lms``::

        torch.cuda.lms.hint(model.head, keep=True)
        with torch.cuda.lms.hint(model.encoder, page=True):
            train(model.decoder)

    A hint belongs to a tensor's storage, for as long as that lives, and takes the place of an
    earlier one. Of a module it is for the parameters and buffers that it has by now, which are on a
    CUDA device; ``recompute`` is for what it and the modules within it return. LMS may be off.

    Args:
        what (torch.nn.Module, torch.Tensor or several tensors): what it is for.
        keep (bool): it leaves the device only where nothing else can.
        page (bool): it leaves the device before anything else, when memory is short.
        recompute (bool, optional): False: never made again. True: where LMS makes bytes again, this
            is made rather than copied. See :func:`set_recompute`. None: by what takes less time.
        host (bool): of what is in host memory, it goes to a disk (:func:`set_disk`) last.
        activations (bool): of a module, ``keep``, ``page`` and ``host`` are for what it and the
            modules within it return, too.

    Returns:
        Hints: takes them back by ``remove()``, or as a context. Without any argument but the first,
        ``hint`` takes back all hints of ``what``.

    Raises:
        TypeError: if ``what`` is something else.
        ValueError: if a tensor is not on a CUDA device, or with both ``keep`` and ``page``.
    """
    return _lms_hints.give(what, Hint(keep, page, recompute, host, activations))


def install_module_method() -> None:
    r"""Give all modules a method ``lms``, as PyTorch's issue 35633 asked for.

    ``module.lms(threshold=0, aggressiveness=0, allowed_types=None, exclude=None)`` turns LMS on,
    gives hints to the module's parameters and buffers, and returns them as :func:`hint` does:

    - ``threshold`` (int): bytes. What is smaller should stay on the device.
    - ``aggressiveness`` (float): the share of the rest, in bytes, that should leave first; the
      first ones of the module. With 0 the plan chooses.
    - ``allowed_types`` (list of torch.dtype): all else should stay.
    - ``exclude`` (function): what it returns True for should stay; it gets the tensor.

    Raises:
        RuntimeError: if modules have something else of that name.
    """
    if getattr(torch.nn.Module, "lms", _lms_of_module) is not _lms_of_module:
        raise RuntimeError("torch.nn.Module has another attribute of the name lms")
    torch.nn.Module.lms = _lms_of_module


def _lms_of_module(
    self: torch.nn.Module,
    threshold: int = 0,
    aggressiveness: float = 0.0,
    allowed_types: Iterable[torch.dtype] | None = None,
    exclude: Callable[[torch.Tensor], bool] | None = None,
) -> Hints:
    """Turn LMS on with hints for this module, see ``torch.cuda.lms.install_module_method``."""
    set_enabled_lms(True)
    return _lms_hints.share(self, threshold, aggressiveness, allowed_types, exclude)


# --- the trace ---


def step() -> None:
    r"""Mark the beginning of an iteration in the trace that ``PYTORCH_LMS_TRACE`` asks for.

    Never needed: LMS finds out by itself what repeats. With the marks, ``lms trace
    replay`` can tell times per iteration. Without a trace it does nothing.

    In a job of :mod:`torch.cuda.lms.jobs` that is a function and no generator, a step ends here:
    other jobs may have their turns before it returns.

    Raises:
        RuntimeError: if the trace cannot be written. Recording is over then.
        torch.cuda.lms.jobs.JobCancelled: in a job that is cancelled.
    """
    if is_loaded():
        engine().step_trace()
    end_step = getattr(_here, "end_step", None)
    if end_step is not None:
        end_step()


def step_in_backward(optimizer: torch.optim.Optimizer) -> SteppingInBackward:
    r"""Step with each parameter within the backward pass, as soon as its gradient is complete.

    The optimizer's state then comes and goes under the computation of the other gradients, and
    gradients do not pile up. The program stays as it is, and so do its results, to the last bit::

        torch.cuda.lms.step_in_backward(optimizer)
        for x, y in data:
            loss_of(model(x), y).backward()
            optimizer.step()  # has nothing left to do, but for its hooks and schedulers
            optimizer.zero_grad()

    After the backward pass there are no gradients to look at. What needs all of them, clipping by
    their norm and gradient scaling, runs the backward pass twice: call
    :meth:`SteppingInBackward.backward` in place of ``loss.backward()``. Where gradients are
    accumulated, see :meth:`SteppingInBackward.accumulating`. It works with LMS off as well.

    Args:
        optimizer (torch.optim.Optimizer): any but LBFGS. It has all its parameters by now.

    Returns:
        SteppingInBackward: keep it if you need its methods.

    Raises:
        TypeError: if ``optimizer`` is none.
        ValueError: if it is LBFGS, has parameters of FullyShardedDataParallel, or some with which
            another optimizer steps in backward passes.
        RuntimeError: within a backward pass, if gradients are averaged by
            DistributedDataParallel, or more of one comes after its step.
    """
    from ._lms_stepping import SteppingInBackward  # which needs torch.nn and torch.optim

    return SteppingInBackward(optimizer)


def step_on_host(
    optimizer: torch.optim.Optimizer, *, device_bytes: int = 0, even_if_slower: bool = False
) -> SteppingOnHost | None:
    r"""Step with parameters on the host's processors, within the backward pass.

    The optimizer's state stays in host memory. Each gradient is copied there when it is complete,
    PyTorch's fused kernel for CPUs steps with it, and the new parameter is copied back, all that
    under the rest of the backward pass::

        stepping = torch.cuda.lms.step_on_host(optimizer) or torch.cuda.lms.step_in_backward(
            optimizer
        )

    Results are those of PyTorch's kernels for CPUs, whose last bits are others than the device's,
    and the same in each run. Everything else is as with :func:`step_in_backward`. Parameters have
    their new values after ``optimizer.step()``. Writing to ``parameter.data`` is not noticed: use
    ``torch.no_grad()``.

    Args:
        optimizer (torch.optim.Optimizer): Adam, AdamW, SGD or Adagrad. It has all its parameters by
            now. Its ``state_dict`` is as ever, on the host.
        device_bytes (int, optional): bytes of the state that are to stay on the device, those of
            the first parameters, which step there.
        even_if_slower (bool, optional): whether it does not matter how fast the host is.

    Returns:
        SteppingOnHost: keep it if you need its methods. None, with a warning in the log, if the
        host would take longer than copying the state to the device and back. It has measured both.
        The optimizer is as it was.

    Raises:
        TypeError: if ``optimizer`` is none.
        ValueError: if it is another one, is differentiable, has sharded parameters, a learning rate
            on the device, or some parameters with which another steps in backward passes.
        RuntimeError: within a backward pass, as with :func:`step_in_backward`, or if gradients are
            sparse.
    """
    from ._lms_host_step import step_on_host

    return step_on_host(optimizer, _bytes(device_bytes, "device_bytes"), even_if_slower)


def load(
    model: torch.nn.Module,
    checkpoint: str | os.PathLike[str],
    *,
    device: Device = None,
    strict: bool = True,
) -> None:
    r"""Load a model that may be larger than device memory, a tensor at a time.

    A module that was made on the device ``meta`` has no memory yet::

        with torch.device("meta"):
            model = Model()
        torch.cuda.lms.load(model, "model.safetensors.index.json")

    Each tensor is read from its file into device memory, converted to the model's dtype. With LMS
    on, those for which the device has no free memory are read into host memory instead, or from
    there to the disk, and come to the device when they are needed. There is never a second copy
    of the model. Tensors that have values already get the checkpoint's in place.

    Args:
        model (torch.nn.Module): on ``meta``, or with values.
        checkpoint (path): a file of safetensors, an index of several (``*.index.json``), a folder
            with one of these, or what ``torch.save(model.state_dict(), ...)`` wrote.
        device (torch.device or int, optional): where what is on ``meta`` goes. Default: the current
            CUDA device.
        strict (bool, optional): whether the names must be the same. What is on ``meta`` must be in
            the checkpoint in any case. A parameter with two names needs one of them.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if names or shapes differ, a file is broken, or a tensor on ``meta`` is in no
            checkpoint. The model is unchanged then.
        torch.OutOfMemoryError: if there is no room, on the device or elsewhere. What is on ``meta``
            is still there then.
    """
    from ._lms_checkpoint import load as load_from

    index = device_index(device)
    load_from(model, Path(checkpoint), torch.device("cuda", index), strict)


def save(
    model: torch.nn.Module | Mapping[str, torch.Tensor],
    path: str | os.PathLike[str],
    *,
    max_shard_bytes: int | None = None,
) -> None:
    r"""Save a model in the format of safetensors, a tensor at a time.

    No more than one tensor is copied at a time, so the model may be larger than host memory has
    room for twice. Of a tensor with several names the first is saved. ``safetensors``,
    ``transformers`` and :func:`load` read the files.

    Args:
        model (torch.nn.Module or mapping): a module, or tensors by name.
        path (path): the file, replaced when all is written; with ``max_shard_bytes`` a folder, made
            if there is none.
        max_shard_bytes (int, optional): bytes of tensors in each of several files
            ``model-00001-of-00002.safetensors``, with an index.

    Raises:
        ValueError: if a tensor has no bytes of its own, or a dtype that the format has not.
        OSError: if a file cannot be written. None is left half-written.
    """
    from ._lms_checkpoint import save as save_to

    tensors = model.state_dict() if isinstance(model, torch.nn.Module) else model
    most = None if max_shard_bytes is None else _bytes(max_shard_bytes, "max_shard_bytes")
    save_to(tensors, Path(path), most)


def _record(path: str) -> None:
    """Records a trace until the interpreter exits, when CUDA can still be asked for times."""
    header = {
        "lms_trace": 2,
        "name": os.path.basename(sys.argv[0] if sys.argv else "") or "python",
        "card": torch.cuda.get_device_name(0),
    }
    engine().open_trace(path, json.dumps(header))
    atexit.register(engine().close_trace)


# --- environment variables ---


def _size(name: str, text: str) -> int:
    """Bytes, from digits alone or with K, M, G or T behind them: powers of 1024."""
    digits, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not (digits.isascii() and digits.isdigit()) or unit not in ("", *"KMGT"):
        raise ValueError(f"{name} must be a number of bytes, such as 500000000 or 4G, got {text!r}")
    return int(digits) << (10 * " KMGT".index(unit or " "))


def _enable_from_environment() -> None:
    mode = os.environ.get("PYTORCH_LMS", "")
    conf = os.environ.get("PYTORCH_LMS_CONF", "")
    for part in conf.split(",") if conf else ():
        key, _, value = part.partition(":")
        if key == "policy":
            engine().set_policy(value)
        elif key == "recompute" and value in ("on", "off"):
            set_recompute(value == "on")
        else:
            raise ValueError(
                "PYTORCH_LMS_CONF must be policy:NAME, recompute:on, recompute:off or two of "
                f"them with a comma between, got {conf!r}"
            )
    for name, apply in (
        ("PYTORCH_LMS_LIMIT", set_limit_lms),
        ("PYTORCH_LMS_HOST_LIMIT", set_host_limit),
    ):
        text = os.environ.get(name, "")
        if text:
            apply(_size(name, text))
    if disk := os.environ.get("PYTORCH_LMS_DISK"):
        folder, colon, size = disk.rpartition(":")
        if not colon:
            raise ValueError(
                f"PYTORCH_LMS_DISK must be FOLDER:BYTES, such as /fast/folder:800G, got {disk!r}"
            )
        set_disk(folder, _size("PYTORCH_LMS_DISK", size))
    if trace := os.environ.get("PYTORCH_LMS_TRACE"):
        _record(trace)
    if mode in ("", "0"):
        return
    if mode not in ("1", "chaos"):
        raise ValueError(f"PYTORCH_LMS must be 0, 1 or chaos, got {mode!r}")
    engine().set_chaos(mode == "chaos")
    set_enabled_lms(True)


_VARIABLES = (
    "PYTORCH_LMS",
    "PYTORCH_LMS_LIMIT",
    "PYTORCH_LMS_HOST_LIMIT",
    "PYTORCH_LMS_DISK",
    "PYTORCH_LMS_TRACE",
    "PYTORCH_LMS_CONF",
)
if any(os.environ.get(name) for name in _VARIABLES):
    # By name, because torch.cuda is still being imported here.
    from torch.cuda import _lazy_call

    _lazy_call(_enable_from_environment)
