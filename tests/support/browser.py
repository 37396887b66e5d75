"""Real Chromium for tests, of a locked package of Qt: see browse.py, which runs in it."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lms_cli import paths
from lms_cli.environments import toolbox

PROGRAM = Path(__file__).with_name("browse.py")
LACK = "cannot open shared object file"  # of a library that the system should have


@dataclass(frozen=True)
class Visit:
    """What came of looking at a page."""

    results: list[Any]  # of each step that runs JavaScript
    console: list[str]  # what was said there

    @property
    def errors(self) -> list[str]:
        return [line for line in self.console if not line.startswith("Info")]


@dataclass(frozen=True)
class Browser:
    python: Path

    def visit(self, page: Path, *steps: dict[str, Any], dark: bool = False) -> Visit:
        task = {"page": str(page), "dark": dark, "size": [1400, 1000], "steps": steps}
        done = subprocess.run(
            [str(self.python), str(PROGRAM)],
            input=json.dumps(task),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        row = json.loads(done.stdout.splitlines()[-1])
        ran = [result for step, result in zip(steps, row["results"]) if "run" in step]
        return Visit(ran, row["console"])


def find() -> Browser:
    """The browser, installed if need be; without libraries of the system that it needs: skips."""
    python = toolbox.make(paths.LOCKS / "browser.lock", "a browser for the tests")
    imported = subprocess.run(
        [str(python), "-c", "import PyQt6.QtWebEngineWidgets"], capture_output=True, text=True
    )
    if LACK in imported.stderr:
        pytest.skip(f"Chromium does not start here: {imported.stderr.splitlines()[-1]}")
    return Browser(python)
