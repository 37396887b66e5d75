"""Optimizers whose steps run within backward passes; see checks/stepping.py."""

from __future__ import annotations

import checked
import pytest
from support.device import Device


@pytest.mark.parametrize("mode", ["", "chaos"])
def test_stepping(device: Device, subtests: pytest.Subtests, mode: str) -> None:
    results = checked.run(device, "stepping", capacity="256M", env={"PYTORCH_LMS": mode})
    checked.expect_passed(results, subtests)
