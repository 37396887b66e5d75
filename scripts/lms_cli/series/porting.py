"""Carrying the hunks of one release's patches to another release's files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from lms_cli.errors import SeriesError
from lms_cli.series import git, series
from lms_cli.series.series import Patch

if TYPE_CHECKING:
    from unidiff.patch import Hunk, PatchedFile

CONFLICT_MARKERS = ("<<<<<<< ", "||||||| ", ">>>>>>> ")


class Outcome(Enum):
    """What became of a hunk."""

    CLEAN = "clean"  # it fits where it was
    MOVED = "moved"  # it fits at another line
    THREE_WAY = "three-way"  # lines around it changed, and the changes do not touch each other
    CONFLICT = "conflict"  # upstream changed the same lines
    UPSTREAM = "already upstream"  # upstream has made the same change
    GONE = "file gone"  # the release does not have the file

    @property
    def needs_work(self) -> bool:
        """Whether somebody must look at it."""
        return self in (Outcome.CONFLICT, Outcome.GONE)


@dataclass(frozen=True)
class Ported:
    """What became of one hunk, and what to do about it."""

    patch: str  # c10-storage-residency.patch
    file: str  # upstream path
    line: int  # of the hunk in the old release, from 1
    outcome: Outcome
    new_line: int | None = None  # in the new release, if the hunk fits there as it is
    expected: tuple[str, ...] = ()  # lines of the old release, of a hunk that needs work
    found: tuple[str, ...] = ()  # what is in their place
    advice: str = ""

    def __str__(self) -> str:
        to = f" -> {self.new_line}" if self.new_line not in (None, self.line) else ""
        rows = [f"{self.outcome.value:16}  {self.file}:{self.line}{to}  ({self.patch})"]
        for title, lines in (("expected", self.expected), ("found", self.found)):
            rows += [f"    {title}:", *(f"      {line}" for line in lines)] if lines else []
        rows += [f"    {self.advice}"] if self.advice else []
        return "\n".join(rows)

    def to_row(self) -> dict[str, object]:
        """The report as JSON has it."""
        return {**self.__dict__, "outcome": self.outcome.value}

    @staticmethod
    def from_row(row: dict[str, Any]) -> Ported:
        """The inverse of `to_row`."""
        lines = {name: tuple(row[name]) for name in ("expected", "found")}
        return Ported(**{**row, **lines, "outcome": Outcome(row["outcome"])})


@dataclass(frozen=True)
class Hunks:
    """The hunks that one patch has for one file."""

    patch: Patch
    file: PatchedFile

    @property
    def path(self) -> str:
        """Upstream path of the file."""
        return str(self.file.path)


def hunks_of(patches: Iterable[Patch]) -> list[Hunks]:
    """The hunks of a series, file by file.

    Raises:
        SeriesError: two patches change one file, so that neither can be ported alone.
    """
    found = [Hunks(patch, file) for patch in patches for file in series.parse(patch)]
    twice = [path for path, count in Counter(it.path for it in found).items() if count > 1]
    if twice:
        raise SeriesError(
            f"more than one patch changes {', '.join(twice)}",
            "Let one patch make all changes of a file.",
        )
    return found


def port(hunks: Hunks, old: str, new: str | None) -> tuple[str | None, list[Ported]]:
    """Carry the hunks of one file to another release.

    Args:
        hunks: they fit `old` exactly.
        old: the file in the release that the hunks are for, as upstream has it.
        new: the file in the other release, None if there is none.

    Returns:
        The file with the hunks, with conflict markers where they conflict, and what became of each.
        From the last hunk to the first, so that no change moves the lines of a later one.
    """
    if new is None:
        advice = "Find where its content went, and change the patch there or drop the change."
        gone = [_report(hunks, hunk, Outcome.GONE, advice=advice) for hunk in hunks.file]
        return None, gone
    text = new
    reports = []
    for hunk in reversed(hunks.file):
        text, report = _port_hunk(hunks, hunk, old, text)
        reports.append(report)
    return text, reports[::-1]


def has_conflicts(text: str) -> bool:
    """Whether a text has conflict markers."""
    return any(line.startswith(CONFLICT_MARKERS) for line in text.splitlines())


def _report(hunks: Hunks, hunk: Hunk, outcome: Outcome, **more: object) -> Ported:
    line = series.start(hunk) + 1
    return Ported(hunks.patch.name, hunks.path, line, outcome, **more)  # type: ignore[arg-type]


def _port_hunk(hunks: Hunks, hunk: Hunk, old: str, text: str) -> tuple[str, Ported]:
    lines = text.splitlines(keepends=True)
    before = series.expected(hunk)
    after = [str(line.value) for line in hunk if line.is_context or line.is_added]
    start = series.start(hunk)
    places = _places(before, lines)
    if start in places or len(places) == 1:
        place = start if start in places else places[0]
        lines[place : place + len(before)] = after
        outcome = Outcome.CLEAN if place == start else Outcome.MOVED
        return "".join(lines), _report(hunks, hunk, outcome, new_line=place + 1)
    old_lines = old.splitlines(keepends=True)
    ours = "".join([*old_lines[:start], *after, *old_lines[start + len(before) :]])
    merged, is_clean = git.merge(ours, old, text, ("LMS", "old release", "new release"))
    if merged == text or (not is_clean and _places(after, lines)):
        return text, _report(hunks, hunk, Outcome.UPSTREAM)
    if is_clean:
        return merged, _report(hunks, hunk, Outcome.MOVED if places else Outcome.THREE_WAY)
    return merged, _report(
        hunks,
        hunk,
        Outcome.CONFLICT,
        expected=_stripped(before),
        found=_stripped(_theirs(merged)),
        advice="Put the change into what is found, between the conflict markers.",
    )


def _places(wanted: list[str], lines: list[str]) -> list[int]:
    """Where some lines occur among others, as indices of the first."""
    count = len(wanted)
    return [i for i in range(len(lines) - count + 1) if lines[i : i + count] == wanted]


def _theirs(merged: str) -> list[str]:
    """The new release's side of the conflicts in a merged text."""
    side: list[str] = []
    inside: bool | None = False  # None between what is common and the other side
    for line in merged.splitlines():
        if line.startswith("||||||| "):
            inside = None
        elif line == "=======":
            inside = inside is None
        elif line.startswith(">>>>>>> "):
            inside = False
        elif inside:
            side.append(line)
    return side


def _stripped(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(line.rstrip("\n") for line in lines)
