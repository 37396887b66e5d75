"""Ways to run a program: without LMS, with it, short of memory, and under chaos."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

MODES = ("off", "fits", "small", "chaos")

PAGE = 4096  # bytes; limits are multiples

Result = TypeVar("Result")


@dataclass(frozen=True)
class Memory:
    """What a run needed and moved, in bytes, all devices together but for the peaks."""

    peak_allocated: int  # the most that tensors took on one device
    peak_reserved: int  # the most that the caching allocator took on one device
    paged_in: int
    paged_out: int


@dataclass(frozen=True)
class Measured(Generic[Result]):
    """A run's result and its memory."""

    result: Result
    memory: Memory


def measure(program: Callable[[], Result], mode: str, limit: int = 0) -> Measured[Result]:
    """Runs a program in one of MODES.

    Args:
        program: leaves nothing on the device.
        mode: "off", "fits": LMS on, "small": LMS on with the limit, or "chaos".
        limit: bytes of device memory for the mode "small".
    """
    devices = range(torch.cuda.device_count())
    with lms(mode, limit):
        for device in devices:
            torch.cuda.reset_peak_memory_stats(device)
        before = [paged(device) for device in devices]
        result = program()
        torch.cuda.synchronize()
        moved = [
            (after[0] - start[0], after[1] - start[1])
            for start, after in zip(before, map(paged, devices), strict=True)
        ]
        memory = Memory(
            peak_allocated=max(torch.cuda.max_memory_allocated(device) for device in devices),
            peak_reserved=max(torch.cuda.max_memory_reserved(device) for device in devices),
            paged_in=sum(bytes_in for bytes_in, _ in moved),
            paged_out=sum(bytes_out for _, bytes_out in moved),
        )
    return Measured(result, memory)


@contextlib.contextmanager
def lms(mode: str, limit: int = 0) -> Iterator[None]:
    """Switches LMS to one of MODES, for processes started meanwhile as well, and off at the end."""
    if mode not in MODES:
        raise ValueError(f"mode {mode} is none of {MODES}")
    release_memory()
    if mode != "off":
        torch.cuda.set_limit_lms(limit if mode == "small" else 0)
        torch.cuda.set_enabled_lms(True)
        torch.ops.lms.set_chaos(mode == "chaos")
        os.environ["PYTORCH_LMS"] = "chaos" if mode == "chaos" else "1"
    try:
        yield
    finally:
        release_memory()
        if mode != "off":
            del os.environ["PYTORCH_LMS"]
            torch.ops.lms.set_chaos(False)
            torch.cuda.set_enabled_lms(False)
            torch.cuda.set_limit_lms(0)


def limit_for(memory: Memory, ratio: float) -> int:
    """Bytes: a limit that the peak need exceeds so many times."""
    return int(memory.peak_allocated / ratio) // PAGE * PAGE


def release_memory() -> None:
    """Frees what the last run left in the caching allocator, where the next would find it."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def paged(device: int) -> tuple[int, int]:
    """Bytes paged in and out on a device since the process started."""
    stats = torch.cuda.lms.stats(device)
    return stats["lms.page_in.bytes"], stats["lms.page_out.bytes"]
