"""What launches of kernels that Triton compiles cost in virtual time.

A launch that reaches the driver has addresses. The tensors are known where it comes from: in `run`
of Inductor's kernels, and of those that users write. What is found there is the thread's, until the
driver asks.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

# SimcudaRate of simcuda.h, by the names of PyTorch's types.
_RATES = {"float64": 0, "float32": 1, "float16": 3, "bfloat16": 4}
_TF32 = 2


@dataclass(frozen=True)
class Work:
    """What a launch does."""

    bytes: float  # read and written in the device's memory
    flops: float = 0  # of matrix products; 0: none, or it is not known how many
    rate: int = _RATES["float32"]  # theirs


class _Here(threading.local):
    kernel: Any = None  # the function that the thread is launching, as Triton has it
    work: Work | None = None  # of that launch


_here = _Here()
_known: dict[tuple[Any, tuple[int, ...]], Work] = {}  # by kernel and grid, of the last launch


def work_of(kernel: Any, grid: tuple[int, ...]) -> Work | None:
    """The work of a launch that the thread makes; None where it comes from somewhere unknown.

    LMS launches a kernel again by itself, on tensors of the same sizes.
    """
    if _here.kernel is kernel and _here.work is not None:
        _known[kernel, grid] = _here.work
    return _known.get((kernel, grid))


def watch_inductor(heuristics: ModuleType) -> None:
    """Looks at what Inductor's kernels are launched with."""
    _watch(heuristics.CachingAutotuner, operator.attrgetter("fn"), _work_of_inductors)


def watch_users(jit: ModuleType) -> None:
    """Looks at what users' kernels are launched with."""
    _watch(jit.JITFunction, lambda function: function, _work_of_users)


def _watch(
    owner: Any,
    kernel_of: Callable[[Any], Any],
    find: Callable[[Any, tuple[Any, ...]], Work],
) -> None:
    original = owner.run

    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        outer = _here.kernel, _here.work
        _here.kernel = kernel_of(self)
        _here.work = find(self, (*args, *kwargs.values()))
        try:
            return original(self, *args, **kwargs)
        finally:
            _here.kernel, _here.work = outer

    owner.run = run


def _work_of_users(_kernel: Any, arguments: tuple[Any, ...]) -> Work:
    """All tensors once: which of them it writes, and how often, only its source says."""
    return Work(sum(map(_bytes_of, _tensors_in(arguments))))


def _work_of_inductors(kernel: Any, arguments: tuple[Any, ...]) -> Work:
    """Inductor's estimate, which knows slices and looked up rows, or else all tensors.

    The estimate is for the sizes that the kernel was compiled for, which are those of its first
    launch. Where sizes are dynamic, others take as much more as their tensors are larger.
    """
    names = kernel.fn.arg_names
    bytes_ = sum(
        sum(map(_bytes_of, _tensors_in([argument]))) * (2 if name.startswith("in_out_ptr") else 1)
        for name, argument in zip(names, arguments)
    )
    meta = kernel.inductor_meta
    if "kernel_num_gb" not in meta or not bytes_:
        return Work(bytes_)
    scale = bytes_ / kernel.__dict__.setdefault("_simcuda_first_bytes", bytes_)
    flops = float(meta.get("kernel_flop") or 0)
    return Work(1e9 * meta["kernel_num_gb"] * scale, flops * scale, _rate_of(arguments))


def _rate_of(arguments: tuple[Any, ...]) -> int:
    import torch

    types = [str(tensor.dtype).removeprefix("torch.") for tensor in _tensors_in(arguments)]
    if types[0] == "float32" and torch.backends.cuda.matmul.allow_tf32:
        return _TF32
    return _RATES.get(types[0], _RATES["float32"])


def _tensors_in(arguments: Iterable[Any]) -> Iterator[Any]:
    """The tensors, and those in what Triton makes of them: other views and descriptors."""
    import torch

    for argument in arguments:
        tensor = getattr(argument, "base", None)
        if isinstance(argument, torch.Tensor):
            yield argument
        elif isinstance(tensor, torch.Tensor):
            yield tensor


def _bytes_of(tensor: Any) -> int:
    """Of its elements; where it is broadcast, of those that exist."""
    if not tensor.numel():
        return 0
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return int(min(tensor.numel(), extent) * tensor.element_size())
