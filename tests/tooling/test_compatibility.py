"""docs/compatibility.md: how it is made, and that it is of the features that there are."""

from __future__ import annotations

from pathlib import Path

import pytest
from lms_cli import paths
from support import compatibility
from support.features import listed


def test_the_table_has_every_feature() -> None:
    text = (paths.ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    missing = [one.title for one in listed() if f"\n| {one.title} | " not in text]
    again = "./scripts/lms test tests/engine -n 2 --compatibility docs/compatibility.md"
    assert not missing, f"make it again: {again}"
    assert "**fails**" not in text


@pytest.mark.parametrize(
    ("outcomes", "shown"),
    [
        (["passed", "skipped"], "works"),
        (["skipped", "passed"], "works"),
        (["failed", "passed", "skipped"], "**fails**"),
        (["skipped"], "not run: why"),
    ],
)
def test_a_line_of_several_tests(tmp_path: Path, outcomes: list[str], shown: str) -> None:
    written = tmp_path / "table.md"
    compatibility.write(written, map(report, outcomes), "2.11.0", "device")
    assert f"## Section\n\n| | |\n|---|---|\n| Line | {shown} |\n" in written.read_text()


def report(outcome: str) -> pytest.TestReport:
    """Of a test that has the line."""
    why = (__file__, 1, "Skipped: why") if outcome == "skipped" else None
    mark = (compatibility.NAME, ("Section", "Line", "works"))
    return pytest.TestReport("name", ("", 0, ""), {}, outcome, why, "call", user_properties=[mark])
