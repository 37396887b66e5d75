"""Hints of what leaves the device, and of what is made again; see checks/hints.py."""

from __future__ import annotations

import checked
import pytest
from support.device import Device


def test_hints(device: Device, subtests: pytest.Subtests) -> None:
    checked.expect_passed(checked.run(device, "hints", capacity="512M"), subtests)
