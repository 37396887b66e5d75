"""Launches of kernels that Triton compiles, in place while Large Model Support is on.

Inductor and users launch them by the addresses of tensors, which no operator shows. Each launch
becomes an operator to the engine (Note [Launches] in LMSOperatorLaunch.h): its tensors are paged in
and pinned until it is queued.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterable
from functools import wraps
from types import ModuleType
from typing import Any

import torch

# Inductor's names of arguments that its kernels only read, unless it says otherwise.
_READ = "in_ptr"

_ALL = -1  # every bit: all arguments are written


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
        elif isinstance(getattr(arg, "base", None), torch.Tensor):
            found.append(arg.base)
    return tuple(found)


def _launch_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    """For `run` of what launches a kernel of its own, with the arguments that it is called with."""
    begin, end = torch.ops.lms.begin_launch.default, torch.ops.lms.end_launch.default

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
            end(failed=True)
            raise
        here.tensors = outer
        end(failed=False)
        return result

    return run


def _written_by(kernel: Any, args: tuple[Any, ...]) -> int:
    """A bit for each tensor that the kernel may write to: all but what Inductor says it reads."""
    mutated = getattr(kernel, "mutated_arg_names", None)
    if mutated is None or getattr(kernel, "custom_kernel", True):
        return _ALL  # a user's
    written = _ALL
    position = 0
    for name, arg in zip(kernel.fn.arg_names, args):
        if _tensors_in((arg,)):
            if name.startswith(_READ) and name not in mutated:
                written &= ~(1 << position)
            position += 1
    return written


# Whose `run` launches, by module.
_LAUNCHERS = {
    "torch._inductor.runtime.triton_heuristics": "CachingAutotuner",
    "triton.runtime.jit": "JITFunction",
}


class _WhenImported(importlib.abc.MetaPathFinder):
    """Hooks the modules that are not imported yet as soon as they are."""

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
                    _hook(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_finder = _WhenImported()
_undo: list[Callable[[], None]] = []


def _hook(module: ModuleType) -> None:
    owner = getattr(module, _LAUNCHERS[module.__name__])
    original = owner.run
    owner.run = wraps(original)(_launch_hook(original))
    _undo.append(lambda: setattr(owner, "run", original))


def install() -> None:
    sys.meta_path.insert(0, _finder)
    for name in _LAUNCHERS:
        if name in sys.modules:
            _hook(sys.modules[name])


def remove() -> None:
    sys.meta_path.remove(_finder)
    while _undo:
        _undo.pop()()
