"""What shows what LMS does: profilers and memory snapshots."""

from __future__ import annotations

import checked
import pytest
from support.device import Device


@pytest.mark.parametrize("mode", ["1", "chaos"])
def test_views(device: Device, subtests: pytest.Subtests, mode: str) -> None:
    env = {"PYTORCH_LMS": mode}
    results = checked.run(device, "watching", capacity="256M", devices=2, env=env)
    checked.expect_passed(results, subtests)
