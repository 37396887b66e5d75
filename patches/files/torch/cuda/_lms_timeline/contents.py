"""What is on the page of a timeline; drawing.py draws it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import memory, story
from .named import Names
from .recorded import Recorded, Stay
from .story import Event, Row, Story

STORAGES = ("storage", "kind", "size", "made by", "copied", "made again", "waited for")
SHORTEST = 1000  # nanoseconds that can be shown
WAITS = ("stood still", "at", "before", "why")


def contents(
    title: str,
    facts: list[tuple[str, str]],
    limit: int,
    recorded: Recorded,
    names: Names,
) -> dict[str, Any]:
    """All that is on the page; times in milliseconds and memory in GiB.

    Args:
        title: of the page.
        facts: what is told besides of all of the step: names, and values as text.
        limit: bytes of device memory.
        recorded: what happened.
        names: of what it happened to.
    """
    told = Story(recorded, names)
    events = sorted(told.events(), key=lambda event: event.begin)
    columns = (*STORAGES, "disk") if recorded.disk else STORAGES
    return {
        "title": title,
        "facts": [
            *spent(recorded),
            *facts,
            *of_disk(recorded, names),
            ("events", f"{recorded.events:,}"),
        ],
        "ms": max(recorded.ns, SHORTEST) / 1e6,
        "lanes": [[lane, kinds_of(lane, events)] for lane in told.lanes],
        "memory": [
            memory_of("device memory", recorded.device, recorded, names, limit),
            memory_of("host memory", recorded.host, recorded, names, None),
        ],
        "tables": [
            table("Storages that cost most", columns, told.costliest_storages()),
            table("Longest stalls", WAITS, told.longest_waits()),
        ],
    }


def spent(recorded: Recorded) -> list[tuple[str, str]]:
    """How long the step took, and what for."""
    program = [ran for ran in recorded.operators if ran.made < 0]
    again = [ran for ran in recorded.operators if ran.made >= 0]
    computing = sum(ran.end - ran.begin for ran in program)
    return [
        ("step", story.milliseconds(recorded.ns)),
        ("the program's operators", story.milliseconds(computing)),
        ("made again", story.milliseconds(sum(ran.end - ran.begin for ran in again))),
        ("stood still", story.milliseconds(story.length(list(recorded.waits)))),
    ]


def of_disk(recorded: Recorded, names: Names) -> list[tuple[str, str]]:
    """What was read from a disk and written to it, if there was one."""

    def total(is_write: bool) -> str:
        transfers = [one for one in recorded.disk if one.is_write == is_write]
        count = sum(names.storages[one.storage].bytes for one in transfers)
        took = sum(one.end - one.begin for one in transfers)
        return f"{story.size(count)} in {story.milliseconds(took)}"

    if not recorded.disk:
        return []
    return [("read from disk", total(is_write=False)), ("written to disk", total(is_write=True))]


def kinds_of(lane: str, events: list[Event]) -> list[tuple[str, dict[str, list[Any]]]]:
    """The events of a lane, by kind, as columns."""
    kinds: dict[str, dict[str, list[Any]]] = {}
    for event in events:
        if event.lane == lane:
            columns = kinds.setdefault(event.kind, {"begin": [], "end": [], "name": [], "why": []})
            columns["begin"].append(event.begin / 1e6)
            columns["end"].append(event.end / 1e6)
            columns["name"].append(event.name)
            columns["why"].append(event.why)
    return sorted(kinds.items())


def memory_of(
    title: str, stays: Sequence[Stay], recorded: Recorded, names: Names, limit: int | None
) -> dict[str, Any]:
    """Of one place, over time."""
    taken = memory.over_time(stays, names, recorded.ns)
    return {
        "title": title,
        "limit": None if limit is None else limit / 2**30,
        "times": [time / 1e6 for time in taken.times],
        "kinds": {kind: [count / 2**30 for count in row] for kind, row in taken.bytes.items()},
    }


def table(title: str, columns: tuple[str, ...], rows: list[Row]) -> dict[str, Any]:
    """With the times to look at, in milliseconds."""
    return {
        "title": title,
        "columns": columns,
        "rows": [
            {"cells": row.cells, "begin": row.begin / 1e6, "end": row.end / 1e6} for row in rows
        ],
    }
