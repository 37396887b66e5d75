"""What a process has only once and each job has of its own: generators, switches of PyTorch's.

What PyTorch has for each thread (gradient mode, autocast, the current stream) belongs to a job by
itself, since it is a thread.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

# Switches with the functions `_get_NAME` and `_set_NAME` of torch._C. Not all releases have all.
_PLAIN = (
    *("cudnn_enabled", "cudnn_benchmark", "cudnn_deterministic"),
    # The older switches for TF32 set the newer ones as well, so they come first.
    *("float32_matmul_precision", "cublas_allow_tf32", "cudnn_allow_tf32"),
    *("mkldnn_enabled", "mkldnn_deterministic", "onednn_allow_tf32"),
    "cublas_allow_fp16_reduced_precision_reduction",
    "cublas_allow_bf16_reduced_precision_reduction",
    "cublas_allow_fp16_accumulation",
    "cpu_allow_fp16_reduced_precision_reduction",
    "math_sdp_allow_fp16_bf16_reduction",
    "sdp_priority_order",
    *("linalg_preferred_backend", "blas_preferred_backend"),
    "deterministic_fill_uninitialized_memory",
)
_ATTENTION = ("flash", "mem_efficient", "math", "cudnn", "overrideable", "fa3")
# The newer switches for TF32, by backend and kind of operator; what others fall back to is first.
_PRECISIONS = (
    ("generic", "all"),
    *((backend, "all") for backend in ("cuda", "mkldnn")),
    *((backend, kind) for backend in ("cuda", "mkldnn") for kind in ("matmul", "conv", "rnn")),
)
_UNKNOWN = object()

_Pair = tuple[Callable[[], Any], Callable[[Any], None]]


def _function_pairs() -> Iterator[tuple[str, str]]:
    for name in _PLAIN:
        yield f"_get_{name}", f"_set_{name}"
    for name in _ATTENTION:
        yield f"_get_{name}_sdp_enabled", f"_set_sdp_use_{name}"
    yield "_cuda_get_cudnn_benchmark_limit", "_cuda_set_cudnn_benchmark_limit"


def _setter(function: Callable[..., None]) -> Callable[[Any], None]:
    """Switches of reduced precision have two values since PyTorch 2.8."""
    return lambda value: function(*value) if isinstance(value, tuple) else function(value)


def _precision_pair(backend: str, kind: str) -> _Pair:
    get, set_ = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter
    return (lambda: get(backend, kind)), (lambda value: set_(backend, kind, value))


def _deterministic() -> tuple[bool, bool]:
    # Past torch.use_deterministic_algorithms, which imports Inductor.
    return (
        torch._C._get_deterministic_algorithms(),
        torch._C._get_deterministic_algorithms_warn_only(),
    )


def _set_deterministic(value: tuple[bool, bool]) -> None:
    torch._C._set_deterministic_algorithms(value[0], warn_only=value[1])


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


@cache
def _switches() -> tuple[_Pair, ...]:
    """How each switch that this release has is read and set."""
    pairs: list[_Pair] = [
        (torch.get_default_dtype, torch.set_default_dtype),
        (_anomaly, lambda value: torch.set_anomaly_enabled(*value)),
        (_deterministic, _set_deterministic),
    ]
    for get, set_ in _function_pairs():
        if hasattr(torch._C, get) and hasattr(torch._C, set_):
            pairs.append((getattr(torch._C, get), _setter(getattr(torch._C, set_))))
    if hasattr(torch._C, "_get_fp32_precision_getter"):  # new in 2.9
        pairs += [_precision_pair(*where) for where in _PRECISIONS]
    return tuple(pairs)


def _value(get: Callable[[], Any]) -> Any:
    """What a switch is; unknown where a program mixes the older and newer ones for TF32."""
    try:
        return get()
    except RuntimeError:
        return _UNKNOWN


class Belongings:
    """A copy of all that."""

    def __init__(self) -> None:
        """Of what the process has now."""
        self._switches = [_value(get) for get, _ in _switches()]
        self._python = random.getstate()
        self._numpy: Any = _numpy_random().get_state() if _numpy_random() else None
        self._host = torch.default_generator.get_state()
        self._devices = [generator.get_state() for generator in torch.cuda.default_generators]

    def apply(self) -> None:
        """Gives the process these values."""
        for (get, set_), value in zip(_switches(), self._switches):
            # Only where it differs: some warn, and to set one may set another.
            if value is not _UNKNOWN and _value(get) != value:
                set_(value)
        random.setstate(self._python)
        if self._numpy is not None:
            _numpy_random().set_state(self._numpy)
        torch.default_generator.set_state(self._host)
        for generator, state in zip(torch.cuda.default_generators, self._devices):
            generator.set_state(state)


def exchange_generators(one: int, other: int) -> None:
    """Exchanges the states of two devices' generators: a job goes from the one to the other."""
    generators = torch.cuda.default_generators
    states = generators[one].get_state(), generators[other].get_state()
    generators[other].set_state(states[0])
    generators[one].set_state(states[1])


def _numpy_random() -> Any:
    """NumPy's module, if the program uses it."""
    return sys.modules.get("numpy.random")
