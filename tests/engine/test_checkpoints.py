"""Models are loaded and saved a tensor at a time; see checks/checkpoints.py."""

from __future__ import annotations

import checked
import pytest
from support.device import Device


def test_checkpoints(device: Device, subtests: pytest.Subtests) -> None:
    results = checked.run(device, "checkpoints", capacity="512M")
    checked.expect_passed(results, subtests)
