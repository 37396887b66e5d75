"""What a committed series must be like, as far as it can be seen without upstream's files."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lms_cli import checks
from lms_cli.checks import Check, Findings, Outcome
from lms_cli.releases import Release
from lms_cli.series import export, series
from lms_cli.series.series import Patch, Series

LINES_BELOW = 120  # upstream lines that the hunks of a series remove and add
FILES_BELOW = 8  # upstream files that they are in
TITLE_LENGTH = 72  # characters; git folds longer ones
PARAGRAPHS = ("Why a patch:", "Upstream-status:")


@dataclass(frozen=True)
class Extent:
    """How much of upstream a series changes."""

    patches: int
    files: int
    lines: int  # removed plus added


def extent(loaded: Series) -> Extent:
    """How much of upstream a series changes.

    Raises:
        SeriesError: a patch is no diff.
    """
    found = [file for patch in loaded.patches for file in series.parse(patch)]
    return Extent(
        patches=len(loaded.patches),
        files=len({file.path for file in found}),
        lines=sum(file.added + file.removed for file in found),
    )


def lint(release: Release) -> Iterator[Check]:
    """Check the series of a release, giving each outcome as it comes; needs no network.

    Raises:
        UsageError: the release has no series.
    """
    outcome = checks.attempt("order", functools.partial(order, release))
    yield outcome
    if outcome.outcome is not Outcome.FAILED:
        loaded = series.load(release)
        for name, find in CHECKS.items():
            yield checks.attempt(name, functools.partial(find, release, loaded))


def order(release: Release) -> Findings:
    """The order file lists each patch once, and each new file is in a known place."""
    loaded = series.load(release)
    return [], f"{len(loaded.patches)} patches and {len(loaded.new_files)} new files"


def messages(release: Release, loaded: Series) -> Findings:
    """Each patch says what it does, why it must exist, and where it stands upstream."""
    found = [problem for patch in loaded.patches for problem in _message_problems(patch)]
    return found, "each patch says what it does, why it must exist and where it stands upstream"


def _message_problems(patch: Patch) -> Iterator[str]:
    title, _, rest = patch.message.partition("\n")
    if title.startswith("From "):
        yield f"{patch.name} begins with the head of a mail: leave only the message"
    elif len(title) > TITLE_LENGTH or not rest.startswith("\n"):
        yield (
            f"{patch.name} does not begin with a title of at most {TITLE_LENGTH} characters "
            "and an empty line"
        )
    for paragraph in PARAGRAPHS:
        if not re.search(rf"^\n{paragraph} \S", rest, re.MULTILINE):
            yield f"{patch.name} has no paragraph '{paragraph} ...'"


def size(release: Release, loaded: Series) -> Findings:
    """The series changes little of upstream."""
    found = extent(loaded)
    facts = f"{found.lines} lines in {found.files} upstream files"
    if found.lines < LINES_BELOW and found.files < FILES_BELOW:
        return [], facts
    limit = f"fewer than {LINES_BELOW} in fewer than {FILES_BELOW} are allowed"
    return [f"{facts}, {limit}: move code into new files"], facts


def exported(release: Release, loaded: Series) -> Findings:
    """The record is that of this series, so its hashes are those of upstream's files."""
    actual = export.record(release, loaded)
    export.require_current(release, actual)
    return [], f"{export.RECORD} is of this series, {len(actual.changed)} files"


CHECKS: dict[str, Callable[[Release, Series], Findings]] = {
    "messages": messages,
    "size": size,
    "export": exported,
}
