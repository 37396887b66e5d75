"""A timeline as a page: what is drawn is decided here, and drawn where the library for it is."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lms_cli import files, paths, progress
from lms_cli.environments import toolbox
from lms_cli.errors import LmsError
from lms_cli.timeline import memory, story
from lms_cli.timeline.named import Names
from lms_cli.timeline.recorded import Recorded, Stay
from lms_cli.timeline.story import LANES, Event, Row, Story
from lms_cli.trace.replaying import Result

STORAGES = ("storage", "kind", "size", "made by", "copied", "made again", "waited for")
WAITS = ("stood still", "at", "before", "why")


def write(path: Path, result: Result, recorded: Recorded, names: Names) -> None:
    """Write the page.

    Raises:
        FileError: it cannot be written there.
        NetworkError: the library that draws it cannot be installed.
    """
    python = toolbox.make(paths.LOCKS / "timeline.lock", "what draws timelines")
    data = json.dumps(contents(result, recorded, names))
    with progress.step(f"drawing {recorded.events:,} events"), files.written_beside(path) as made:
        done = subprocess.run(
            [str(python), "-m", "lms_cli.timeline.drawing", str(made)],
            env={**os.environ, "PYTHONPATH": str(paths.SCRIPT.parent)},
            input=data,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise LmsError(
                f"the timeline cannot be drawn:\n{done.stderr.rstrip()}",
                f"Remove {python.parents[1]}, which is made anew then, and try again.",
            )


def contents(result: Result, recorded: Recorded, names: Names) -> dict[str, Any]:
    """What is on the page; times in milliseconds and memory in GiB."""
    told = Story(recorded, names)
    events = sorted(told.events(), key=lambda event: event.begin)
    machine = result.machine
    return {
        "title": f"{result.trace.name}: step {recorded.step + 1} of {recorded.steps}",
        "facts": facts(result, recorded),
        "ms": recorded.ns / 1e6,
        "lanes": [[lane, kinds_of(lane, events)] for lane in LANES],
        "memory": [
            memory_of("device memory", recorded.device, recorded, names, machine.capacity),
            memory_of("host memory", recorded.host, recorded, names, None),
        ],
        "tables": [
            table("Storages that cost most", STORAGES, told.costliest_storages()),
            table("Longest stalls", WAITS, told.longest_waits()),
        ],
    }


def facts(result: Result, recorded: Recorded) -> list[tuple[str, str]]:
    """A few figures of the step."""
    program = [ran for ran in recorded.operators if ran.made < 0]
    again = [ran for ran in recorded.operators if ran.made >= 0]
    computing = sum(ran.end - ran.begin for ran in program)
    return [
        ("step", story.milliseconds(recorded.ns)),
        ("the program's operators", story.milliseconds(computing)),
        ("made again", story.milliseconds(sum(ran.end - ran.begin for ran in again))),
        ("stood still", story.milliseconds(story.length(list(recorded.waits)))),
        ("memory needed", story.size(result.trace.peak_bytes)),
        ("device memory", story.size(result.machine.capacity)),
        ("policy", result.policy),
        ("events", f"{recorded.events:,}"),
    ]


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
