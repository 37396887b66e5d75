"""On which processors steps on the host run, and whether these are fast enough to be worth it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

_MOST_TRIED = 1 << 25  # elements: with the state they are larger than caches
_BYTES_TRIED = 64 << 20  # by the link


def host_group(group: dict[str, Any], twin: torch.Tensor) -> dict[str, Any]:
    """With the options as they are now: the program may change them before the twin is stepped."""
    options = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in group.items()}
    return {**options, "params": [twin], "fused": True, "foreach": False, "capturable": False}


def processors_near(device: torch.device) -> set[int]:
    """Empty if that is not known."""
    found: Any = torch.cuda.get_device_properties(device)
    near: set[int] = set()
    with suppress(AttributeError, OSError, ValueError):
        address = f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
        text = Path(f"/sys/bus/pci/devices/{address}/local_cpulist").read_text()
        for part in text.split(","):
            first, _, last = part.partition("-")
            near.update(range(int(first), int(last or first) + 1))
    return near & os.sched_getaffinity(0)


def bind(near: set[int]) -> None:
    """This thread, and those that it will start to share its work with."""
    if near:
        with suppress(OSError):  # it is faster, no more
            os.sched_setaffinity(0, near)
        torch.set_num_threads(min(torch.get_num_threads(), len(near)))


def _trial(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], dtype: torch.dtype, count: int
) -> tuple[torch.optim.Optimizer, torch.Tensor]:
    """An optimizer of the same kind that has taken its first step on the host."""
    twin = torch.full([count], 0.5, dtype=dtype)
    twin.grad = torch.full_like(twin, 0.5)
    trial = type(optimizer)([host_group(group, twin)])
    trial.step()
    return trial, twin


def state_size(optimizer: torch.optim.Optimizer, group: dict[str, Any], dtype: torch.dtype) -> int:
    """Bytes of state for each number of a parameter."""
    trial, twin = _trial(optimizer, group, dtype, count=2)
    state = trial.state[twin].values()
    return sum(one.element_size() for one in state if isinstance(one, torch.Tensor) and one.dim())


def why_slower(
    optimizer: torch.optim.Optimizer,
    hosted: Mapping[torch.Tensor, dict[str, Any]],
    worker: Executor,
) -> str | None:
    """Compares steps on the host with copying the state to the device and back."""
    largest = max(hosted, key=torch.Tensor.numel)
    group, count = hosted[largest], sum(one.numel() for one in hosted)
    tried = min(count, _MOST_TRIED)

    def on_host() -> tuple[float, int]:
        trial, _ = _trial(optimizer, group, largest.dtype, tried)
        begin = time.perf_counter()
        trial.step()
        return time.perf_counter() - begin, torch.get_num_threads()

    taken, threads = worker.submit(on_host).result()
    stepping = taken / tried * count
    state = state_size(optimizer, group, largest.dtype) * count
    copying = state * seconds_per_byte_both_ways(largest.device, min(state, _BYTES_TRIED))
    if stepping <= copying:
        return None
    return (
        f"{stepping * 1e3:,.0f} ms for the steps on the host with {threads} threads are more than "
        f"the {copying * 1e3:,.0f} ms in which the state is copied to the device and back"
    )


def seconds_per_byte_both_ways(device: torch.device, size: int) -> float:
    """In both directions at once, as state comes and goes within the backward pass."""
    host = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    there = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2)]
    streams = [torch.cuda.Stream(device) for _ in range(2)]
    for _ in range(2):  # once to warm up
        torch.cuda.synchronize(device)  # nothing but these copies is to be timed
        begin = time.perf_counter()
        with torch.cuda.stream(streams[0]):
            there[0].copy_(host[0], non_blocking=True)
        with torch.cuda.stream(streams[1]):
            host[1].copy_(there[1], non_blocking=True)
        torch.cuda.synchronize(device)
        taken = time.perf_counter() - begin
    return taken / size
