"""Launches of kernels that Triton compiles, in place while Large Model Support is on.

Inductor and users launch them by the addresses of tensors, which no operator shows. Each launch
becomes an operator to the engine. Any launch does by being told of when it begins and ends (Note
[Launches] in LMSOperatorLaunch.h): its tensors are paged in and pinned until it is queued. What
Inductor launches by PyTorch's static launcher becomes an operator of the dispatcher, launched by
the engine (Note [Kernels as operators] in LMSOperatorKernel.h): that takes less time, and most of
these can run again.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import itertools
import re
import sys
import threading
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch

# Inductor's names of arguments that its kernels only read, unless it says otherwise.
_READ = "in_ptr"
_BOTH = "in_out_ptr"  # they read, and write to

_ALL = -1  # every bit: all arguments are written
_KNOWN = 63  # arguments that bits can say it of; those beyond count as written


class _Here(threading.local):
    """What the launch that the thread is in has pinned."""

    tensors: tuple[torch.Tensor, ...] = ()


here = _Here()


def _tensors_in(arguments: Iterable[Any]) -> tuple[torch.Tensor, ...]:
    """The tensors, and those in what Triton makes of them: other views and descriptors."""
    found = []
    for arg in arguments:
        if isinstance(arg, torch.Tensor):
            found.append(arg)
        elif type(arg) is not int and isinstance(getattr(arg, "base", None), torch.Tensor):
            found.append(arg.base)
    return tuple(found)


def _launch_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    """For `run` of what launches a kernel of its own, with the arguments that it is called with."""
    ops = torch.ops.lms
    begin, end = ops.begin_launch.default._op, ops.end_launch.default._op  # a microsecond less

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("warmup"):
            return original(self, *args, **kwargs)
        tensors = _tensors_in((*args, *kwargs.values()) if kwargs else args)
        kernel = self.__dict__.get("_lms_kernel")
        if kernel is None:
            kernel = self._lms_kernel = f"triton::{self.fn.__name__}", _written_by(self, args)
        begin(kernel[0], tensors, kernel[1])
        outer, here.tensors = here.tensors, tensors
        try:
            result = original(self, *args, **kwargs)
        except BaseException:
            here.tensors = outer
            end(True)
            raise
        here.tensors = outer
        end(False)
        return result

    return run


def _tuner_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    """For `run` of Inductor's, which tunes first and has one launcher then."""
    launch = _launch_hook(original)

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        launchers = self.launchers
        is_operator = launchers[0].__dict__.get("_lms_is_operator") if launchers else None
        if is_operator:
            return original(self, *args, **kwargs)
        result = launch(self, *args, **kwargs)
        if is_operator is None and len(self.launchers) == 1:
            self.launchers[0]._lms_is_operator = _make_operator(self, self.launchers[0])
        return result

    return run


def _written_by(kernel: Any, args: tuple[Any, ...]) -> int:
    """A bit for each tensor that the kernel may write to: all but what Inductor says it reads."""
    if _is_users(kernel):
        return _ALL
    written = _ALL
    position = 0
    for name, arg in zip(kernel.fn.arg_names, args):
        if _tensors_in((arg,)):
            if position < _KNOWN and _is_read(kernel, name):
                written &= ~(1 << position)
            position += 1
    return written


def _is_users(kernel: Any) -> bool:
    return getattr(kernel, "custom_kernel", True)  # Triton's own classes have no such attribute


def _is_read(kernel: Any, argument: str) -> bool:
    """Whether Inductor says that the kernel only reads it."""
    if _is_users(kernel):
        return False
    return argument.startswith(_READ) and argument not in kernel.mutated_arg_names


# What Inductor makes kernels by that have no effects but what they write.
_PURE = ("POINTWISE", "REDUCTION", "PERSISTENT_REDUCTION")

# In the source of one that is not the same each time, or does something else.
_NOT_PURE = ("atomic", "grid_barrier", "print")


def _is_pure(kernel: Any) -> bool:
    """Whether it gives the same bits each time, and does nothing else."""
    if _is_users(kernel) or kernel.heuristic_type.name not in _PURE:
        return False
    source = getattr(kernel.fn, "src", None)
    return source is not None and not any(word in source for word in _NOT_PURE)


# Of a static launcher that does more than to launch (since PyTorch 2.15).
_MORE = ("global_scratch_size", "profile_scratch_size", "_has_tensordesc", "device_agnostic")

# Its letters for types that the engine passes on: an address, floats, and integers.
_TYPES = frozenset("Ofd" + "ibhl" + "IBHK")

_MOST_ARGUMENTS = 64  # of an operator: PyTorch refuses a schema with more

# How an operator that launches begins: the grid, and the stream to launch on.
_PLACE = ("int grid_x", "int grid_y", "int grid_z", "int? stream")

_numbers = itertools.count()
_loaded: list[Any] = []  # static launchers, which may unload their kernels when they die


def _make_operator(kernel: Any, launcher: Any) -> bool:
    """Lets the engine launch what PyTorch's static launcher does; whether it knows all it needs."""
    static = getattr(launcher.__globals__.get("runner"), "__self__", None)
    types = getattr(static, "arg_tys", None)
    if (
        types is None
        or not _TYPES.issuperset(types)
        or static.function is None
        or any(getattr(static, name, None) for name in _MORE)
    ):
        return False
    names = [
        name for number, name in enumerate(static.arg_names) if number not in static.full_constexprs
    ]
    if len(names) != len(types) or len(_PLACE) + len(names) > _MOST_ARGUMENTS:
        return False
    is_pure = _is_pure(kernel)
    arguments, letters = [], ""
    for name, letter in zip(names, types):
        if letter != "O":
            arguments.append(f"{'float' if letter in 'fd' else 'int'} {name}")
        elif _is_read(kernel, name):
            arguments.append(f"Tensor {name}")
        else:
            known_as = _written_name(kernel, name) if is_pure else f"kept_{name}"
            arguments.append(f"Tensor(w{len(arguments)}!) {known_as}")
            letter = "W"
        letters += letter
    scratch = "".join(
        "O" for kind in ("global", "profile") if getattr(static, f"has_{kind}_scratch", False)
    )
    overload = f"{'lms_pure' if is_pure else 'lms'}{next(_numbers)}"
    torch.ops.lms.define_kernel(
        f"triton::{static.name}.{overload}({', '.join((*_PLACE, *arguments))}) -> ()",
        static.function,
        static.num_warps,
        static.shared,
        letters + scratch,
    )
    operator = getattr(getattr(torch.ops.triton, static.name), overload)
    launcher.__globals__["runner"] = operator._op
    if hasattr(kernel, "_cached_launcher"):  # PyTorch 2.15 keeps one for all launches to come
        kernel._cached_launcher = launcher
    _loaded.append(static)
    return True


def _written_name(kernel: Any, argument: str) -> str:
    """What is called `out_ptr` had no bytes that anybody needs.

    Inductor says of the others that they are mutated. But what a kernel stores to and never loads
    from, under a name for both, it has made itself in the same memory before.
    """
    if argument not in kernel.mutated_arg_names:
        return argument
    uses = len(re.findall(rf"\b{argument}\b", kernel.fn.src)) - 1  # without its declaration
    if argument.startswith(_BOTH) and uses == kernel.fn.src.count(f"tl.store({argument} "):
        return f"out_ptr_{argument}"
    return f"kept_{argument}"


def _cpp_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    """For calls of Inductor's graphs: one that it wrote in C++ launches unseen."""

    def call(self: Any, inputs: list[Any]) -> Any:
        if not getattr(self, "fx_kwargs", {}).get("cpp_wrapper"):
            return original(self, inputs)
        with torch.cuda.lms.pin(*_tensors_in(inputs)):
            return original(self, inputs)

    return call


# What launches, by module: a class, its method, and the hook on it.
_LAUNCHERS = {
    "torch._inductor.runtime.triton_heuristics": ("CachingAutotuner", "run", _tuner_hook),
    "torch._inductor.output_code": ("CompiledFxGraph", "__call__", _cpp_hook),
    "triton.runtime.jit": ("JITFunction", "run", _launch_hook),
}


# Replaces an attribute of an owner by what a hook makes of it, until hooks are removed.
Hook = Callable[[Any, str, Callable[[Callable[..., Any]], Any]], None]


class _WhenImported(importlib.abc.MetaPathFinder):
    """Hooks the modules that are not imported yet as soon as they are."""

    hook: Hook

    def apply_to(self, module: ModuleType) -> None:
        name, method, make = _LAUNCHERS[module.__name__]
        self.hook(getattr(module, name), method, make)

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name not in _LAUNCHERS:
            return None
        sys.meta_path.remove(self)  # so that the others are asked
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                if self in sys.meta_path:  # still on
                    self.apply_to(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_finder = _WhenImported()


def install(hook: Hook) -> None:
    _finder.hook = hook
    sys.meta_path.insert(0, _finder)
    for name in _LAUNCHERS:
        if name in sys.modules:
            _finder.apply_to(sys.modules[name])


def remove() -> None:
    """No more modules are hooked. Whoever has given the hook removes what it did."""
    sys.meta_path.remove(_finder)
