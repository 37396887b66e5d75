"""Numbers of a step for the loggers of experiments: a flat dictionary."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

from . import _lms_log
from ._lms_stats import device_index

if TYPE_CHECKING:
    from torch.types import Device

# By name: a statistic of `torch.cuda.memory_stats`. The part of it since the last call, bytes...
_BYTES_SINCE = {
    "page_in_bytes": "lms.page_in.bytes",
    "page_out_bytes": "lms.page_out.bytes",
    "recompute_bytes": "lms.recompute.bytes",
    "moved_bytes": "lms.moved.bytes",
}
# ... or microseconds.
_TIME_SINCE = {
    "page_in_ms": "lms.page_in.us",
    "page_out_ms": "lms.page_out.us",
    "recompute_ms": "lms.recompute.us",
    "stall_demand_ms": "lms.stall.demand.us",
    "stall_ahead_ms": "lms.stall.ahead.us",
    "stall_memory_ms": "lms.stall.memory.us",
}
# What it is now.
_NOW = {
    "device_bytes": "allocated_bytes.all.current",
    "paged_out_bytes": "lms.paged_out_bytes.current",
    "host_bytes": "lms.host_bytes.current",
    "host_limit_bytes": "lms.host_bytes.limit",
}

_lock = threading.Lock()  # around _last
_last: dict[int, dict[str, int]] = {}  # statistics, by device


def metrics(device: Device = None, prefix: str = "lms/") -> dict[str, float]:
    r"""Return what LMS did on a device since the last call, for a logger of experiments.

    One flat dictionary of numbers, with the same names each time::

        wandb.log(torch.cuda.lms.metrics(), step=step)

        for name, value in torch.cuda.lms.metrics().items():
            writer.add_scalar(name, value, step)  # TensorBoard

    Of the time since the last call for the device, or since the beginning:

    - ``"lms/{page_in,page_out,recompute,moved}_bytes"``: bytes that were copied to the device
      and to the host, made again, and moved within the device to join free memory.
    - ``"lms/{page_in,page_out,recompute}_ms"``: the milliseconds that it took, beside the
      program's own work or not.
    - ``"lms/stall_{demand,ahead,memory}_ms"``: milliseconds that streams stood still: for
      bytes that were fetched when they were needed, for bytes that were fetched ahead but
      late, and for memory that was being paged out or moved.

    At the moment of the call, in bytes:

    - ``"lms/device_bytes"``: what tensors take on the device.
    - ``"lms/paged_out_bytes"``: storages of the device that are in host memory only.
    - ``"lms/host_bytes"``, ``"lms/host_limit_bytes"``: host memory that paged-out storages of
      all devices take, and its limit.
    - ``"lms/limit_bytes"``: device memory to use at most, 0 while LMS is off.

    The device may be behind: its times are those of what it has done by now, so the rest of
    a step counts for the next one. Who calls it twice in a step gets each part once. All
    numbers are 0 where there is nothing to tell: before CUDA is used, and without a GPU.

    Args:
        device (torch.device or int, optional): the current device if None.
        prefix (str): what names begin with. With several devices in one process, give each
            one of its own, such as ``"lms/cuda1/"``.
    """
    is_in_use = torch.cuda.is_initialized()
    index = device_index(device) if is_in_use else 0
    _lms_log.look()
    with _lock:
        now = torch.cuda.memory_stats(index) if is_in_use else {}
        before = _last.get(index, {})
        _last[index] = now

    def since(name: str) -> int:
        return now.get(name, 0) - before.get(name, 0)

    values: dict[str, float] = {name: since(of) for name, of in _BYTES_SINCE.items()}
    values |= {name: since(of) / 1000 for name, of in _TIME_SINCE.items()}
    values |= {name: now.get(of, 0) for name, of in _NOW.items()}
    is_on = is_in_use and torch.cuda.get_enabled_lms()
    values["limit_bytes"] = torch.cuda.get_limit_lms(index) if is_on else 0
    return {prefix + name: value for name, value in values.items()}
