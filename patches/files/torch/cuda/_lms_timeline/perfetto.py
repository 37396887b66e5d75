"""A timeline in the JSON format that Perfetto (https://ui.perfetto.dev) reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from . import memory
from .named import Names
from .recorded import Recorded
from .story import Event, Story

PROCESS = 1  # there is one, the device


def text(title: str, recorded: Recorded, names: Names) -> str:
    """What is in the file."""
    rows = list(events(title, recorded, names))
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": rows})


def events(title: str, recorded: Recorded, names: Names) -> Iterator[dict[str, Any]]:
    """A thread for each lane, a counter for each place, an arrow from each copy to who waited."""
    yield {"ph": "M", "pid": PROCESS, "name": "process_name", "args": {"name": title}}
    story = Story(recorded, names)
    threads = {lane: number for number, lane in enumerate(story.lanes, start=1)}
    for lane, thread in threads.items():
        place = {"ph": "M", "pid": PROCESS, "tid": thread}
        yield {**place, "name": "thread_name", "args": {"name": lane}}
        yield {**place, "name": "thread_sort_index", "args": {"sort_index": thread}}
    told = story.events()
    copies = {event.number: event for event in told if event.number >= 0 and not event.is_wait}
    for event in told:
        yield slice_of(event, threads[event.lane])
        if event.is_wait and (copy := copies.get(event.number)):
            arrow = {"name": "waits", "cat": "lms", "id": event.number, "pid": PROCESS}
            yield {**arrow, "ph": "s", "tid": threads[copy.lane], "ts": copy.begin / 1e3}
            there = {"tid": threads[event.lane], "ts": event.begin / 1e3}
            yield {**arrow, "ph": "f", "bp": "e", **there}
    for name, stays in (("device memory", recorded.device), ("host memory", recorded.host)):
        taken = memory.over_time(stays, names, recorded.ns)
        for number, time in enumerate(taken.times):
            bytes_ = {kind: row[number] for kind, row in taken.bytes.items()}
            counter = {"ph": "C", "pid": PROCESS, "name": name, "ts": time / 1e3}
            yield {**counter, "args": bytes_}


def slice_of(event: Event, thread: int) -> dict[str, Any]:
    """An event; times in microseconds."""
    return {
        "ph": "X",
        "pid": PROCESS,
        "tid": thread,
        "cat": "lms",
        "name": event.name,
        "ts": event.begin / 1e3,
        "dur": (event.end - event.begin) / 1e3,
        "args": {"kind": event.kind, "why": event.why},
    }
