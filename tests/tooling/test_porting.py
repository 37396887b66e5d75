"""Carrying hunks to another release: each outcome, and what it leaves in the file."""

from __future__ import annotations

from pathlib import Path

import fake_torch
import pytest
from lms_cli.errors import SeriesError
from lms_cli.series import git, porting, series
from lms_cli.series.porting import Outcome, Ported
from lms_cli.series.series import Patch

FILE = "torch/some.py"
OLD = "".join(f"line {n}\n" for n in range(1, 31))
OURS = OLD.replace("line 10\n", "line 10\nours\n")


@pytest.fixture
def patch(tmp_path: Path) -> Patch:
    text = fake_torch.git_patch(tmp_path / "repository", {FILE: OLD}, {FILE: OURS})
    return Patch("ours.patch", text)


def port(patch: Patch, new: str | None) -> tuple[str | None, list[Ported]]:
    (hunks,) = porting.hunks_of([patch])
    return porting.port(hunks, OLD, new)


CASES = {
    "nothing changed": (OLD, Outcome.CLEAN, OURS),
    "changed elsewhere": (OLD + "more\n", Outcome.CLEAN, OURS + "more\n"),
    "lines inserted above": ("new\n" + OLD, Outcome.MOVED, "new\n" + OURS),
    "lines removed above": (OLD[7:], Outcome.MOVED, OURS[7:]),
    "context changed": (
        OLD.replace("line 8\n", "line eight\n"),
        Outcome.THREE_WAY,
        OURS.replace("line 8\n", "line eight\n"),
    ),
    "the same change": (OURS, Outcome.UPSTREAM, OURS),
    "the same change, moved": ("new\n" + OURS, Outcome.UPSTREAM, "new\n" + OURS),
    "another copy of the place": (OLD + OLD, Outcome.CLEAN, OURS + OLD),
}


@pytest.mark.parametrize(("new", "outcome", "result"), CASES.values(), ids=CASES)
def test_what_needs_nobody(patch: Patch, new: str, outcome: Outcome, result: str) -> None:
    text, (report,) = port(patch, new)
    assert (report.outcome, text) == (outcome, result)
    assert not report.outcome.needs_work
    assert not porting.has_conflicts(text or "")


def test_of_two_places_the_one_that_history_leads_to(patch: Patch) -> None:
    """Both copies have moved: only the three-way merge can tell which is the old one."""
    copy = "".join(f"line {n}\n" for n in range(7, 15))
    text, (report,) = port(patch, "first\n" + copy + "second\n" + OLD)
    assert (text, report.outcome) == ("first\n" + copy + "second\n" + OURS, Outcome.MOVED)


def test_a_conflict_says_what_was_expected_and_what_is_there(patch: Patch) -> None:
    new = OLD.replace("line 10\nline 11\n", "ten\neleven\n")
    text, (report,) = port(patch, new)
    assert report.outcome is Outcome.CONFLICT
    assert report.outcome.needs_work
    assert "line 10" in report.expected
    assert report.found == ("ten", "eleven")
    assert porting.has_conflicts(text or "")
    assert "conflict" in str(report)
    assert "ten" in str(report)


def test_a_file_that_is_gone(patch: Patch) -> None:
    text, (report,) = port(patch, None)
    assert text is None
    assert report.outcome is Outcome.GONE


def test_each_hunk_has_an_outcome_of_its_own(tmp_path: Path) -> None:
    after = OLD.replace("line 3\n", "3\n").replace("line 15\n", "15\n").replace("line 27\n", "27\n")
    text = fake_torch.git_patch(tmp_path / "repository", {FILE: OLD}, {FILE: after})
    new = OLD.replace("line 15\n", "fifteen\n").replace("line 20\n", "line 20\n20a\n")
    merged, reports = port(Patch("three.patch", text), new)
    outcomes = [report.outcome for report in reports]
    assert outcomes == [Outcome.CLEAN, Outcome.CONFLICT, Outcome.MOVED]
    assert [report.line for report in reports] == [1, 12, 24]
    assert merged is not None
    assert "3\nline 4\n" in merged
    assert "line 26\n27\nline 28\n" in merged


def test_a_report_survives_json(patch: Patch) -> None:
    _, (report,) = port(patch, OLD.replace("line 10\nline 11\n", "ten\neleven\n"))
    row = report.to_row()
    assert Ported.from_row({**row, "expected": list(report.expected)}) == report


def test_a_file_belongs_to_one_patch(patch: Patch) -> None:
    with pytest.raises(SeriesError, match=f"more than one patch changes {FILE}"):
        porting.hunks_of([patch, Patch("again.patch", patch.text)])


def test_a_diff_is_what_the_series_applies(tmp_path: Path) -> None:
    text = git.diff({FILE: OLD}, {FILE: OURS})
    loaded = series.Series({}, (Patch("made.patch", "Why\n---\n" + text),))
    assert series.apply(loaded, {FILE: OLD}.get).changed == {FILE: OURS}
    assert f"index {git.blob(OLD)}..{git.blob(OURS)} 100644" in text
