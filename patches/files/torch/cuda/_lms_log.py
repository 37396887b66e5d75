"""What Large Model Support tells the log, at INFO but for hints.

That memory ran short, also of what hints ask for; who took an address, or captured a graph, which
keeps storages on the device; at the end, what LMS did. Nothing calls back from the engine. The
statistics are looked at when a backward pass begins, at most once a second, and only while somebody
listens.
"""

from __future__ import annotations

import atexit
import linecache
import logging
import sys
import time
from types import FrameType

import torch

from ._lms_library import engine

logger = logging.getLogger("torch.cuda.lms")

SECONDS_BETWEEN_LOOKS = 1.0

# Modules that ask for addresses on behalf of who has called them.
_OWN = ("torch.cuda._lms", "torch._tensor", "torch.storage", "torch.utils.dlpack")

# Allocations that were served by paging out.
_SHORTAGE = tuple(
    f"alloc_distribution.{source}"
    for source in ("reclaim_one", "reclaim_fragments", "reclaim_all", "cudamalloc_retry")
)


class _Report:
    """What one process tells; nothing in one made by `fork`, where CUDA is not initialized."""

    def __init__(self) -> None:
        self.begun_at = time.monotonic()
        self.next_look_at = self.begun_at
        self.told: set[tuple[str, int]] = set()  # events, by device
        self.has_hints = False  # that something should stay
        atexit.register(self.end)

    def is_silent(self) -> bool:
        level = logging.WARNING if self.has_hints else logging.INFO
        return not (logger.isEnabledFor(level) and torch.cuda.is_initialized())

    def look(self) -> None:
        now = time.monotonic()
        if now >= self.next_look_at:
            self.next_look_at = now + SECONDS_BETWEEN_LOOKS
            for device in range(torch.cuda.device_count()):
                self.tell_news(device, engine().stats(device))

    def tell_news(self, device: int, stats: dict[str, int]) -> None:
        if any(stats[name] for name in _SHORTAGE) and self.is_new("shortage", device):
            logger.info(
                "cuda:%d: memory is short. LMS keeps to its limit of %s: storages that no "
                "operator needs go to host memory, of which %s may be used. %s are managed, %s of "
                "them are on the host only.",
                device,
                _size(engine().get_limit(device)),
                _size(stats["lms.host_bytes.limit"]),
                _size(stats["lms.managed_bytes.all.current"]),
                _size(stats["lms.paged_out_bytes.current"]),
            )
        if stats["lms.recompute.count"] and self.is_new("recompute", device):
            logger.info(
                "cuda:%d: LMS makes bytes again by running operators once more, in place of "
                "copying them. It goes on with that if iterations are faster so.",
                device,
            )

        if stats["lms.hints.overruled"] and self.is_new("hints", device):
            logger.warning(
                "cuda:%d: memory is short of what hints ask for: storages with keep=True left the "
                "device, or some with host=True went to disk, since what operators need does not "
                "fit beside them. Results are the same. Fewer such hints may be faster.",
                device,
            )

    def tell_of_address(self, storage: torch.UntypedStorage, frame: FrameType | None) -> None:
        while frame is not None and frame.f_globals.get("__name__", "").startswith(_OWN):
            frame = frame.f_back
        if frame is None:
            return
        path, line = frame.f_code.co_filename, frame.f_lineno
        if self.is_new(f"address {path}:{line}", storage.device.index):
            logger.info(
                "cuda:%d: LMS keeps a storage of %s on the device for the rest of its life, since "
                "its address was asked for, which may outlive the call: %s:%d: %s",
                storage.device.index,
                _size(storage.nbytes()),
                path,
                line,
                linecache.getline(path, line).strip(),
            )

    def tell_of_capture(self, device: int, is_earlier: bool) -> None:
        kept = _size(engine().stats(device)["pinned_bytes.all.current"])
        if is_earlier:
            logger.info(
                "cuda:%d: CUDA graphs were captured before LMS was turned on, and may use any "
                "tensor there is by now. All stay on the device: %s. Turn LMS on first.",
                device,
                kept,
            )
        elif self.is_new("capture", device):
            logger.info(
                "cuda:%d: a CUDA graph was captured, as torch.compile does with "
                'mode="reduce-overhead". What graphs use stays on the device: %s of what LMS '
                "manages by now.",
                device,
                kept,
            )

    def is_new(self, event: str, device: int) -> bool:
        is_new = (event, device) not in self.told
        self.told.add((event, device))
        return is_new

    def end(self) -> None:
        if self.is_silent():
            return
        seconds = time.monotonic() - self.begun_at
        for device in range(torch.cuda.device_count()):
            stats = engine().stats(device)
            self.tell_news(device, stats)
            if stats["reclaimed"]:
                logger.info("cuda:%d: %s", device, _account(stats, seconds))


_report: _Report | None = None


def begin() -> None:
    """LMS is on."""
    global _report
    if _report is None:
        _report = _Report()


def look() -> None:
    """Tell what is new, if it is time to look."""
    if _report is not None and not _report.is_silent():
        _report.look()


def note_hints() -> None:
    """Something should stay on the device: it is a warning if it cannot."""
    if _report is not None:
        _report.has_hints = True


def tell_of_address(storage: torch.UntypedStorage) -> None:
    """A storage is held, for whoever has called; told once for each line of a program."""
    if _report is not None and not _report.is_silent():
        _report.tell_of_address(storage, sys._getframe(1))


def tell_of_capture(is_earlier: bool = False) -> None:
    """A graph was captured on the current device, told once; or before LMS was turned on."""
    if _report is not None and not _report.is_silent():
        _report.tell_of_capture(torch.cuda.current_device(), is_earlier)


def _account(stats: dict[str, int], seconds: float) -> str:
    stalled = sum(stats[f"lms.stall.{cause}.us"] for cause in ("demand", "ahead", "memory"))
    return (
        f"in {seconds:.0f} s LMS paged in {_size(stats['lms.page_in.bytes'])}, paged out "
        f"{_size(stats['lms.page_out.bytes'])} and made {_size(stats['lms.recompute.bytes'])} "
        f"again. Streams stood still for {stalled / 1e4 / max(seconds, 1e-6):.1f} % of the time. "
        f"Host memory: {_size(stats['lms.host_bytes.peak'])} at most."
    )


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 1 << 30 else f"{count / 2**20:.1f} MiB"
