"""The engine's layout and policies, compiled without PyTorch and tested in C++."""

from __future__ import annotations

from pathlib import Path

import pytest
import units

# Everything that a policy is made of; it includes nothing of PyTorch.
PARTS = [
    *("Layout", "Runs", "Space", "Clearing"),
    *("Policy", "Windows", "History", "Cycle", "Plan", "FetchOrder", "Wishes"),
    *("PlannedPolicy", "OriginalPolicy"),
]


@pytest.mark.parametrize(
    "program",
    ["layout_policy", "lead", "long_cycles", "planned_policy", "planned_choices", "space"],
)
def test_unit(program: str, tmp_path: Path, subtests: pytest.Subtests) -> None:
    units.expect_passed(program, PARTS, tmp_path, subtests)
