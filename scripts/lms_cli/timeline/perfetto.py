"""A timeline in the JSON format that Perfetto (https://ui.perfetto.dev) reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lms_cli import files
from lms_cli.timeline import memory
from lms_cli.timeline.named import Names
from lms_cli.timeline.recorded import Recorded
from lms_cli.timeline.story import LANES, STILL, Event, Story

PROCESS = 1  # there is one, the device


def write(path: Path, title: str, recorded: Recorded, names: Names) -> None:
    """Write the file.

    Raises:
        FileError: it cannot be written there.
    """
    rows = list(events(title, recorded, names))
    files.write_text(path, json.dumps({"displayTimeUnit": "ms", "traceEvents": rows}))


def events(title: str, recorded: Recorded, names: Names) -> Iterator[dict[str, Any]]:
    """A thread for each lane, a counter for each place, an arrow from each copy to who waited."""
    yield {"ph": "M", "pid": PROCESS, "name": "process_name", "args": {"name": title}}
    for lane in LANES:
        place = {"ph": "M", "pid": PROCESS, "tid": thread(lane)}
        yield {**place, "name": "thread_name", "args": {"name": lane}}
        yield {**place, "name": "thread_sort_index", "args": {"sort_index": thread(lane)}}
    told = Story(recorded, names).events()
    copies = {event.number: event for event in told if event.number >= 0 and event.lane != STILL}
    for event in told:
        yield slice_of(event)
        if event.lane == STILL and (copy := copies.get(event.number)):
            arrow = {"name": "waits", "cat": "lms", "id": event.number, "pid": PROCESS}
            yield {**arrow, "ph": "s", "tid": thread(copy.lane), "ts": copy.begin / 1e3}
            yield {**arrow, "ph": "f", "bp": "e", "tid": thread(STILL), "ts": event.begin / 1e3}
    for name, stays in (("device memory", recorded.device), ("host memory", recorded.host)):
        taken = memory.over_time(stays, names, recorded.ns)
        for number, time in enumerate(taken.times):
            bytes_ = {kind: row[number] for kind, row in taken.bytes.items()}
            counter = {"ph": "C", "pid": PROCESS, "name": name, "ts": time / 1e3}
            yield {**counter, "args": bytes_}


def slice_of(event: Event) -> dict[str, Any]:
    """An event; times in microseconds."""
    return {
        "ph": "X",
        "pid": PROCESS,
        "tid": thread(event.lane),
        "cat": "lms",
        "name": event.name,
        "ts": event.begin / 1e3,
        "dur": (event.end - event.begin) / 1e3,
        "args": {"kind": event.kind, "why": event.why},
    }


def thread(lane: str) -> int:
    """Number of a lane."""
    return LANES.index(lane) + 1
