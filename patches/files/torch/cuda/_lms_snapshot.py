"""Storages that are not on the device, in the snapshots of torch.cuda.memory.

A snapshot gets one device more for each that has such storages, after all others, so that sums over
a device's segments stay what they are. A viewer of snapshots shows it like any device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

# Larger than any address of a process, and exact in the viewer's numbers, which are doubles.
_FIRST_ADDRESS = 1 << 48


class _Page(NamedTuple):
    storage: int  # its id in a trace
    bytes: int
    place: int  # of PageAway in LMSDeviceReport.h


class _Place(NamedTuple):
    segment_type: str
    state: str  # of its blocks; viewers count "active_allocated" as used memory
    text: str


_PLACES = (
    _Place("lms_paged_out", "active_allocated", "in host memory only"),
    _Place("lms_dropped", "inactive", "nowhere, made again when needed"),
    _Place("lms_host_copy", "active_allocated", "on the device, and a copy in host memory"),
    _Place("lms_on_disk", "active_allocated", "on disk only"),
)


def hook(original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """For `torch.cuda.memory._snapshot`."""

    def snapshot(*args: Any, **kwargs: Any) -> dict[str, Any]:
        found = original(*args, **kwargs)
        _add(found)
        return found

    return snapshot


def _add(snapshot: dict[str, Any]) -> None:
    traces = snapshot["device_traces"]
    address = _FIRST_ADDRESS
    for device in range(len(traces)):
        pages = _pages_away(device)
        for number, place in enumerate(_PLACES):
            here = [page for page in pages if page.place == number]
            if here:
                segment = _segment(here, place, device, len(traces), address)
                snapshot["segments"].append(segment)
                address += segment["total_size"]
        if pages:
            traces.append([])  # one list per device


def _pages_away(device: int) -> list[_Page]:
    numbers = torch.ops.lms.pages_away(device)
    return sorted(_Page(*numbers[i : i + 3]) for i in range(0, len(numbers), 3))


def _segment(
    pages: list[_Page], place: _Place, device: int, host: int, address: int
) -> dict[str, Any]:
    """The storages of a device that are in one place, as if they lay side by side."""
    size = sum(page.bytes for page in pages)
    used = size if place.state == "active_allocated" else 0
    blocks = []
    begin = address
    for page in pages:
        text = f"storage {page.storage} of cuda:{device} is {place.text}"
        blocks.append(
            {
                "address": begin,
                "size": page.bytes,
                "requested_size": page.bytes,
                "state": place.state,
                "frames": [_frame(text, page.storage)],
            }
        )
        begin += page.bytes
    return {
        "device": host,
        "address": address,
        "total_size": size,
        "allocated_size": used,
        "active_size": used,
        "requested_size": used,
        "stream": 0,
        "segment_type": place.segment_type,
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [_frame(f"storages of cuda:{device}: {place.text}", 0)],
        "blocks": blocks,
    }


def _frame(text: str, line: int) -> dict[str, Any]:
    """Viewers show it where they show who allocated a block."""
    return {"name": text, "filename": "torch.cuda.lms", "line": line}
