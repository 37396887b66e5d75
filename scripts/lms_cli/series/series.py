"""The patch series of a release: new files, and hunks on files that upstream ships in its wheel.

A hunk must match at exactly the line it names: no fuzz, no search for a better place. What does not
match is reported for all files at once, with the lines that were expected and those that were
found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lms_cli.errors import SeriesError, UsageError
from lms_cli.releases import Release
from lms_cli.series import source_layout
from lms_cli.series.source_layout import Kind

if TYPE_CHECKING:
    from unidiff.patch import Hunk, PatchedFile

ORDER_FILE = "series"
NEW_FILES = "files"
MESSAGE_END = "---\n"


@dataclass(frozen=True)
class Patch:
    """One patch file of a series."""

    name: str  # storage-hook.patch
    text: str

    @property
    def message(self) -> str:
        """What stands above the diff: a title, an empty line, and prose that says why."""
        return self._parts()[0]

    @property
    def diff(self) -> str:
        """The change itself, as git writes it."""
        return self._parts()[1]

    def _parts(self) -> tuple[str, str]:
        message, separator, diff = self.text.partition(f"\n{MESSAGE_END}")
        if not separator or not diff.startswith("diff --git "):
            raise SeriesError(
                f"{self.name} is not a message, a line of three dashes, and a diff of git",
                "Write it as the other patches are; `git diff` makes the last part.",
            )
        return message.strip("\n") + "\n", diff


@dataclass(frozen=True)
class Series:
    """Everything LMS adds to one release."""

    new_files: dict[str, str]  # text by upstream path
    patches: tuple[Patch, ...]  # in the order of application

    def digest(self) -> str:
        """SHA-256 over everything in the series."""
        content = repr((sorted(self.new_files.items()), self.patches))
        return hashlib.sha256(content.encode()).hexdigest()

    def sources(self) -> dict[str, str]:
        """Text of the new files that are compiled, by upstream path."""
        return self._of_kind(Kind.COMPILED)

    def _of_kind(self, *kinds: Kind) -> dict[str, str]:
        return {
            path: text for path, text in self.new_files.items() if source_layout.kind(path) in kinds
        }


@dataclass(frozen=True)
class Applied:
    """What a series makes of a wheel's text members; the keys are member names."""

    added: dict[str, str] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)


def load(release: Release) -> Series:
    """Read the series of a release.

    Raises:
        UsageError: the release has no series.
        SeriesError: the order file and the folder do not agree, or a new file is in no known place.
    """
    order_file = release.series / ORDER_FILE
    try:
        lines = order_file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"PyTorch {release.version} has no series: {error}") from error
    order = [name for line in lines if (name := line.partition("#")[0].strip())]
    present = {path.name for path in release.series.glob("*.patch")}
    if set(order) != present or len(set(order)) != len(order):
        odd = sorted(set(order) ^ present) or [name for name in order if order.count(name) > 1]
        raise SeriesError(
            f"{order_file} does not list each patch of its folder exactly once: {', '.join(odd)}",
            "Add the missing names to the order file, or remove what is not there.",
        )
    new_files = {path: text for path, text in _new_files(release.patches / NEW_FILES)}
    for path in new_files:
        source_layout.kind(path)
    patches = (Patch(name, (release.series / name).read_text(encoding="utf-8")) for name in order)
    return Series(new_files, tuple(patches))


def _new_files(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8")


def apply(series: Series, read: Callable[[str], str | None]) -> Applied:
    """Apply a series to the text members of a wheel.

    Args:
        series: what to apply.
        read: gives the text of a wheel member, None if there is no such member.

    Raises:
        SeriesError: at least one hunk does not fit, or a new file already exists upstream.
    """
    added: dict[str, str] = {}
    for path, text in series._of_kind(Kind.HEADER, Kind.PYTHON).items():
        name = source_layout.member(path)
        if read(name) is not None:
            raise SeriesError(
                f"{path} is a new file of the series, but upstream has it too ({name})"
            )
        added[name] = (
            source_layout.guarded(text) if source_layout.kind(path) is Kind.HEADER else text
        )
    changed: dict[str, str] = {}
    problems: dict[str, str] = {}
    for patch in series.patches:
        for file in parse(patch):
            if file.path not in problems and source_layout.kind(file.path) is not Kind.ABSENT:
                _apply_to_file(patch, file, read, changed, problems)
    if problems:
        report = "\n".join(problems.values())
        raise SeriesError(
            f"the series does not apply, {len(problems)} file(s) differ from it:\n{report}",
            "Rebase these patches onto the release; nothing was written.",
        )
    return Applied(added, changed)


def parse(patch: Patch) -> list[PatchedFile]:
    """The files that a patch changes.

    Raises:
        SeriesError: it is no unified diff, or it does something else than changing files.
    """
    from unidiff.errors import UnidiffParseError
    from unidiff.patch import PatchSet

    try:
        files = list(PatchSet(patch.text))
    except UnidiffParseError as error:
        raise SeriesError(f"{patch.name} is not a unified diff: {error}") from error
    for file in files:
        if not file.is_modified_file or file.is_rename:
            raise SeriesError(
                f"{patch.name} adds, removes or renames {file.path}",
                f"New files belong in patches/{NEW_FILES}/; a patch may only change files.",
            )
    if not files:
        raise SeriesError(f"{patch.name} changes nothing")
    return files


def _apply_to_file(
    patch: Patch,
    file: PatchedFile,
    read: Callable[[str], str | None],
    changed: dict[str, str],
    problems: dict[str, str],
) -> None:
    name = source_layout.member(file.path)
    text = changed.get(name) or read(name)
    if text is None:
        problems[file.path] = f"{file.path} ({patch.name}): the release does not have this file"
        return
    upstream = source_layout.unguarded(text)
    before = upstream.splitlines(keepends=True)
    misfits = [report for hunk in file if (report := _misfit(hunk, before))]
    if misfits:
        problems[file.path] = "\n".join([f"{file.path} ({patch.name}):", *misfits])
        return
    after = "".join(_patched(file, before))
    changed[name] = source_layout.guarded(after) if upstream is not text else after


def expected(hunk: Hunk) -> list[str]:
    """The lines that a hunk replaces."""
    return [str(line.value) for line in hunk if line.is_context or line.is_removed]


def start(hunk: Hunk) -> int:
    """Index of a hunk's first line in the file before the patch."""
    return hunk.source_start - 1 if hunk.source_length else hunk.source_start


def _misfit(hunk: Hunk, before: list[str]) -> str:
    """Why a hunk does not fit, with both texts; empty if it fits."""
    wanted = expected(hunk)
    first = start(hunk)
    found = before[first : first + len(wanted)]
    if found == wanted:
        return ""
    rows = [f"  hunk at line {first + 1} does not fit:"]
    for number, line in enumerate(wanted, first + 1):
        there = before[number - 1] if number <= len(before) else None
        if line == there:
            continue
        rows.append(f"    {number}: expected {line.rstrip()!r}")
        rows.append(
            f"    {number}: found    {there.rstrip()!r}"
            if there is not None
            else f"    {number}: found    the end of the file"
        )
    return "\n".join(rows)


def _patched(file: PatchedFile, before: list[str]) -> Iterator[str]:
    position = 0
    for hunk in file:
        yield from before[position : start(hunk)]
        yield from (str(line.value) for line in hunk if line.is_context or line.is_added)
        position = start(hunk) + len(expected(hunk))
    yield from before[position:]
