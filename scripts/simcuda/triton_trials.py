"""Trials of kernels, by which Triton and Inductor choose the fastest: their programs are counted.

How long the interpreter would take says nothing of a card, and results would hang on it. So what is
launched to be timed is not run, and the number of its programs is taken for its time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any


class _Here(threading.local):
    programs: int | None = None  # launched in the thread's trial; None: there is none


_here = _Here()


def is_trial(programs: int) -> bool:
    """Whether what the thread launches, so many programs, is only to be timed."""
    if _here.programs is None:
        return False
    _here.programs += programs
    return True


def count_programs(module: ModuleType) -> None:
    """Replaces what a module times kernels with."""

    def count(function: Callable[[], Any]) -> float:
        _here.programs = 0
        try:
            function()
            return float(_here.programs)
        finally:
            _here.programs = None

    def benchmark(_self: Any, function: Callable[[], Any], *_: Any, **__: Any) -> float:
        return count(function)

    def do_bench(function: Callable[[], Any], *_: Any, quantiles: Any = None, **__: Any) -> Any:
        programs = count(function)
        return [programs] * len(quantiles) if quantiles else programs

    for owner in list(vars(module).values()):
        if "benchmark_gpu" in getattr(owner, "__dict__", {}):
            owner.benchmark_gpu = benchmark
    if hasattr(module, "do_bench"):
        setattr(module, "do_bench", do_bench)  # noqa: B010
