"""The page of a replayed step, drawn in an environment that has the library for it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from _lms_timeline import contents, story
from _lms_timeline.named import Names
from _lms_timeline.recorded import Recorded

from lms_cli import files, paths, progress
from lms_cli.environments import toolbox
from lms_cli.errors import LmsError
from lms_cli.trace.replaying import Result


def write(path: Path, result: Result, recorded: Recorded, names: Names) -> None:
    """Write the page.

    Raises:
        FileError: it cannot be written there.
        NetworkError: the library that draws it cannot be installed.
    """
    python = toolbox.make(paths.LOCKS / "timeline.lock", "what draws timelines")
    data = json.dumps(contents_of(result, recorded, names))
    with progress.step(f"drawing {recorded.events:,} events"), files.written_beside(path) as made:
        done = subprocess.run(
            [str(python), "-m", "_lms_timeline.drawing"],
            env={**os.environ, "PYTHONPATH": str(paths.TIMELINE)},
            input=data,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise LmsError(
                f"the timeline cannot be drawn:\n{done.stderr.rstrip()}",
                f"Remove {python.parents[1]}, which is made anew then, and try again.",
            )
        made.write_text(done.stdout, encoding="utf-8")


def contents_of(result: Result, recorded: Recorded, names: Names) -> dict[str, Any]:
    """What is on the page."""
    capacity = result.machine.capacity
    facts = [
        ("memory needed", story.size(result.trace.peak_bytes)),
        ("device memory", story.size(capacity)),
        ("policy", result.policy),
    ]
    title = f"{result.trace.name}: step {recorded.step + 1} of {recorded.steps}"
    return contents.contents(title, facts, capacity, recorded, names)
