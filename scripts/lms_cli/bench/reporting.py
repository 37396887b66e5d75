"""The benchmark's files: results as JSON, and the plots drawn from them."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lms_cli import files, progress
from lms_cli.bench.cells import Cell
from lms_cli.bench.running import Results
from lms_cli.environments.lms_environment import Environment
from lms_cli.errors import LmsError

RESULTS = "results.json"  # every cell's figures
GANTT = "gantt.json"  # when each engine worked in an iteration, of the cells at one ratio
PLOT = Path(__file__).with_name("plot.py")
GANTT_RATIO = 2.0  # the ratio that is fewest times larger or smaller is drawn
INTERNAL = ("gantt", "gantt_ns", "machine")  # figures that are no results


def write(results: Results, folder: Path, command: str) -> Path:
    """Write both JSON files; return the one with the results."""
    rows = [_row(results, cell) for cell in results.outcomes]
    text = json.dumps({"command": command, "cells": rows}, indent=1)
    files.write_text(folder / RESULTS, text + "\n")
    files.write_text(folder / GANTT, json.dumps(_gantts(results)))
    return folder / RESULTS


def _row(results: Results, cell: Cell) -> dict[str, Any]:
    outcome = results.outcomes[cell]
    bound = results.bounds.get(cell)
    kept = {name: value for name, value in outcome.figures.items() if name not in INTERNAL}
    return {
        **asdict(cell.subject),
        "slug": cell.subject.slug,
        "title": cell.subject.title,
        "rival": cell.rival,
        "ratio": cell.ratio,
        "capacity_bytes": cell.capacity,
        "status": outcome.status,
        "reason": outcome.reason,
        "of_ideal": results.of_ideal(cell),
        "bound": None if bound is None else asdict(bound),
        **kept,
    }


def _gantts(results: Results) -> dict[str, dict[str, Any]]:
    """By subject: the title of a picture, and by rival the work of one iteration."""
    ratios = {cell.ratio for cell in results.outcomes if cell.ratio}
    drawn = min(ratios, key=_distance, default=None)
    pictures: dict[str, dict[str, Any]] = {}
    for cell, outcome in results.outcomes.items():
        if outcome.ok and cell.ratio in (None, drawn):
            title = f"{cell.subject.title}, need {drawn or 1:g} times the memory"
            picture = pictures.setdefault(cell.subject.slug, {"title": title, "rivals": {}})
            picture["rivals"][cell.rival] = {
                name: outcome.figures[name] for name in ("gantt", "gantt_ns")
            }
    return pictures


def _distance(ratio: float) -> float:
    return max(ratio / GANTT_RATIO, GANTT_RATIO / ratio)


def draw(environment: Environment, folder: Path) -> list[Path]:
    """Draw what `write` wrote; return the pictures.

    Raises:
        LmsError: they cannot be drawn.
    """
    return pictures(environment, PLOT, "--folder", str(folder))


def pictures(environment: Environment, program: Path, *arguments: str) -> list[Path]:
    """Those that a program draws, which prints their paths.

    Raises:
        LmsError: they cannot be drawn.
    """
    command = [str(environment.python), str(program), *arguments]
    with progress.step("drawing", brief=True):
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise LmsError(f"the plots cannot be drawn:\n{done.stderr.strip()}")
    return [Path(line) for line in done.stdout.splitlines()]
