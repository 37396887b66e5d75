"""Outcomes of checks, as verifying and linting report them: one line each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from lms_cli import progress
from lms_cli.errors import SeriesError, WheelError

Findings = tuple[list[str], str]  # what is wrong, and what to say if nothing is
SHOWN = 5  # problems named in one check's line


class Outcome(Enum):
    """How a check ended."""

    PASSED = "pass"
    FAILED = "FAIL"
    SKIPPED = "skip"  # the detail says why


@dataclass(frozen=True)
class Check:
    """The outcome of one check."""

    name: str
    outcome: Outcome
    detail: str

    def __str__(self) -> str:
        return f"{self.outcome.value}  {self.name}: {self.detail}"


def check(name: str, problems: list[str], facts: str) -> Check:
    """A check that failed with the problems found, or passed with facts if there is none."""
    if not problems:
        return Check(name, Outcome.PASSED, facts)
    more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
    return Check(name, Outcome.FAILED, "; ".join(problems[:SHOWN]) + more)


def attempt(name: str, find: Callable[[], Findings]) -> Check:
    """Run one check; that a series or a wheel cannot even be read is a finding too."""
    try:
        return check(name, *find())
    except (SeriesError, WheelError) as error:
        return Check(name, Outcome.FAILED, str(error))


def show(subject: str, outcomes: Iterable[Check]) -> int:
    """Print each outcome as it comes, below what was checked; return how many failed."""
    print(subject, flush=True)
    failed = 0
    with progress.step(f"checking {subject}", brief=True):
        for outcome in outcomes:
            print(f"  {outcome}", flush=True)
            failed += outcome.outcome is Outcome.FAILED
    return failed
