"""The table of docs/compatibility.md, made of how tests ended.

A test marked `compatibility(section, title, shown)` has a line in it: `shown` if it passes. Where
several tests have the same line, it says that one has failed, else what one shows that has run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

NAME = "compatibility"
HEAD = """# What works

Made by `./scripts/lms test tests/engine -n 2 --compatibility docs/compatibility.md`
of how the tests ended: PyTorch {release} on the {device}.

"Works" means: the same bits as without LMS when LMS is on, when memory is short, and under chaos,
which pages out everything after every operator.
"""
FAILS = "**fails**"
RANKS = ("skipped", "passed", "failed")  # of several reports on a line, the last counts


def record(items: Iterable[pytest.Item]) -> None:
    """Puts what the marks say where reports have it."""
    for item in items:
        for mark in item.iter_markers(NAME):
            item.user_properties.append((NAME, mark.args))


def write(path: Path, reports: Iterable[pytest.TestReport], release: str, device: str) -> None:
    """Writes the table."""
    sections: dict[str, dict[str, str]] = defaultdict(dict)
    for report in sorted(reports, key=lambda report: RANKS.index(report.outcome)):
        for section, title, shown in (
            value for name, value in report.user_properties if name == NAME
        ):
            sections[section][title] = _outcome(report, shown)
    text = HEAD.format(release=release, device=device)
    for section, lines in sorted(sections.items()):
        rows = [f"| {title} | {lines[title]} |" for title in sorted(lines, key=_letters)]
        text += "\n".join(["", f"## {section}", "", "| | |", "|---|---|", *rows, ""])
    path.write_text(text, encoding="utf-8")


def _letters(title: str) -> str:
    return title.replace("`", "").lower()


def _outcome(report: pytest.TestReport, shown: str) -> str:
    if report.skipped:
        assert isinstance(report.longrepr, tuple)
        return f"not run: {report.longrepr[2].removeprefix('Skipped: ')}"
    return shown if report.passed else FAILS
