"""docs/compatibility.md is of the features that there are."""

from __future__ import annotations

from lms_cli import paths
from support.features import listed


def test_the_table_has_every_feature() -> None:
    text = (paths.ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    missing = [one.title for one in listed() if f"\n| {one.title} | " not in text]
    again = "./scripts/lms test tests/engine -n 2 --compatibility docs/compatibility.md"
    assert not missing, f"make it again: {again}"
    assert "**fails**" not in text
