"""How far jobs are: lines on a terminal while they run, and a table."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from .job import Job

_HEAD = ("job", "state", "steps", "seconds", "per second", "GB in", "GB out")
_SECONDS_BETWEEN = 0.5


class Lines:
    """A line for each job, which others take the place of; nothing where there is no terminal."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._is_terminal = self._out.isatty()
        self._shown = 0  # lines
        self._next_at = 0.0

    def show(self, jobs: Sequence[Job]) -> None:
        """The jobs as they are now, at most twice a second."""
        now = time.monotonic()
        if not self._is_terminal or now < self._next_at:
            return
        self._next_at = now + _SECONDS_BETWEEN
        self.clear()
        lines = [_line(job) for job in jobs if not job.has_ended]
        self._out.write("".join(f"{line}\n" for line in lines))
        self._out.flush()
        self._shown = len(lines)

    def clear(self) -> None:
        """Takes the lines away."""
        if self._shown:
            self._out.write(f"\x1b[{self._shown}A\x1b[J")  # up so many lines, erase from there on
            self._out.flush()
            self._shown = 0


def _line(job: Job) -> str:
    parts = [f"{job.name}: {job.state}", f"step {_steps(job)}"]
    if job.step_seconds is not None:
        parts += [f"{job.step_seconds:.3g} s/step", _rate(job)]
    if job.device is not None:
        parts.append(f"cuda:{job.device}")
    return ", ".join(parts)


def table(jobs: Sequence[Job]) -> str:
    """A row for each job: what it did, in which time on devices, and what was copied for it."""
    rows = [_HEAD, *map(_row, jobs)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths))
        )
        for row in rows
    )


def _row(job: Job) -> tuple[str, ...]:
    state = job.state
    if job.exception is not None:
        state = f"{job.state}: {type(job.exception).__name__}"
    copied = (f"{count / 1e9:.1f}" for count in (job.paged_in, job.paged_out))
    return (job.name, state, _steps(job), f"{job.device_seconds:.1f}", _rate(job), *copied)


def _steps(job: Job) -> str:
    return f"{job.steps_done}" if job.steps is None else f"{job.steps_done} of {job.steps}"


def _rate(job: Job) -> str:
    """What it does in a second on a device."""
    if not job.device_seconds:
        return "-"
    count, of = job.per_step or (1, "steps")
    return f"{count * job.steps_done / job.device_seconds:.4g} {of}"
