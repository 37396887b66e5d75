"""Statistics of Large Model Support, on their own and among those of torch.cuda.memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ._lms_library import engine, is_loaded

if TYPE_CHECKING:
    from torch.types import Device


def device_index(device: Device) -> int:
    """Return the number of a device that exists; of the current one if None."""
    index = torch.cuda._utils._get_device_index(device, optional=True)
    count = torch.cuda.device_count()
    if count == 0:
        raise ValueError("there is no CUDA device: this process sees none")
    if not 0 <= index < count:
        raise ValueError(f"there is no CUDA device {index}: this process sees {count}")
    return index


def stats(device: Device = None) -> dict[str, int]:
    r"""Return the statistics of LMS on a device, by name.

    What is pinned, and what left:

    - ``"pinned.{all,large_pool,small_pool}.{current,peak,allocated,freed}"`` and
      ``"pinned_bytes..."``: storages that cannot be reclaimed now, because an
      operator runs on them or their address has escaped.
    - ``"reclaimed"``, ``"reclaimed_bytes"``: storages paged out so far.
    - ``"alloc_distribution.{freelist,cudamalloc,reclaim_one,reclaim_fragments,
      reclaim_all,cudamalloc_retry}"``: how many allocations were served how.
    - ``"lms.managed..."``, ``"lms.managed_bytes..."``: storages LMS manages.
    - ``"lms.paged_out_bytes.{current,peak,allocated,freed}"``: bytes that are in
      host memory or on disk, and not on the device.
    - ``"lms.on_disk_bytes.{current,peak,allocated,freed}"``: bytes that are on disk, whether
      they are elsewhere as well or not.

    Copies:

    - ``"lms.{page_in,page_out,moved}.{copies,bytes,us}"``: traffic to the device, to the
      host, and within the device to join free memory, and the microseconds that it took;
      ``"lms.page_in.ahead.{copies,bytes}"``: the part that began before an operator needed
      it.
    - ``"lms.dropped"``, ``"lms.dropped_bytes"``: the part of what was reclaimed that was
      not copied, because the host or the disk had the same bytes.
    - ``"lms.{disk_write,disk_read}.{copies,bytes,us}"``: traffic from host memory to disk and
      back, see :func:`torch.cuda.lms.set_disk`.
    - ``"lms.prefetch.{hits,late,wasted}"``: uses of storages that were fetched ahead, in time
      or not, and storages that left or died without a use.
    - ``"lms.hints.overruled"``: storages that left the device, or went to disk, for want of memory
      although a hint keeps them.
    - ``"lms.stall.{demand,ahead,memory}.{times,us}"``: how often and for how many microseconds
      streams stood still, for bytes that were fetched when they were needed, for bytes that
      were fetched ahead but late, and for memory that was being paged out or moved. Less
      than 10 µs does not count as once.
    - ``"lms.hidden_percent"``: the share of copy time that no stream stood still for. 100
      if nothing was copied.

    Computing again:

    - ``"lms.recompute.{count,bytes,us}"``: storages whose bytes were dropped and made again
      by the operator that had made them, and the microseconds that it took.

    Memory:

    - ``"lms.free_bytes.{all,largest}"``: free memory in the caching allocator's segments, and
      the largest range of it: the smaller its part, the more fragmented memory is.
    - ``"lms.host_bytes.{current,peak,reserved,page_locked,others,limit}"``: host memory
      for paged-out storages, of all devices: in use, taken from the system (one slab
      ahead of its use), the part of this that is page-locked, taken by other processes,
      and the limit of all together.
    - ``"lms.disk_bytes.{current,others,limit}"``: bytes on the disk in use by storages of all
      devices, reserved by other processes, and the limit of all together.

    And ``"num_ooms"``: out-of-memory errors that the program got, in upstream's place.

    Times are of what the device has done by now. All numbers are part of
    :func:`torch.cuda.memory_stats` as well.

    Args:
        device (torch.device or int, optional): the current device if None.
    """
    return dict(sorted(engine().stats(device_index(device)).items()))


def with_stats(nested: dict[str, Any], device: int) -> dict[str, Any]:
    """Add the statistics to upstream's nested dictionary, if LMS is in use."""
    if not is_loaded():
        return nested
    for name, value in engine().stats(device).items():
        *path, last = name.split(".")
        level = nested
        for key in path:
            level = level.setdefault(key, {})
        level[last] = value
    return nested


def reset_peak_stats(device: int) -> None:
    """Make the peaks what is current, if LMS is in use."""
    if is_loaded():
        engine().reset_peak_stats(device)


def summary_lines(
    stats: dict[str, int],
    format_size: Callable[[int, int], str],
    format_count: Callable[[int, int], str],
) -> list[str]:
    """Return the rows of LMS in :func:`torch.cuda.memory_summary`, none if it is not in use."""
    if "reclaimed" not in stats:
        return []
    lines = []
    for title, name, form in (
        ("LMS pinned memory", "pinned_bytes.all", format_size),
        ("LMS pinned allocs", "pinned.all", format_count),
        ("LMS managed memory", "lms.managed_bytes.all", format_size),
        ("LMS paged out", "lms.paged_out_bytes", format_size),
    ):
        row = [stats[f"{name}.{kind}"] for kind in ("current", "peak", "allocated", "freed")]
        cells = " | ".join(form(value, value) for value in row)
        lines += ["-" * 75, f" {title:<21} | {cells} "]
    total = stats["reclaimed_bytes"]
    count = stats["reclaimed"]
    reclaimed = f"{format_size(total, total)} in {format_count(count, count).strip()} storages"
    lines += ["-" * 75, f" {'LMS reclaimed':<21} | {reclaimed:<49} "]
    again, times = stats["lms.recompute.bytes"], stats["lms.recompute.count"]
    made = f"{format_size(again, again)} in {format_count(times, times).strip()} storages"
    lines += [f" {'LMS made again':<21} | {made:<49} "]
    lines += [f" {'LMS copies hidden':<21} | {stats['lms.hidden_percent']:>9} %{'':<38} "]
    return lines
