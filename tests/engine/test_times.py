"""How long copies take and streams wait; see checks/times.py."""

from __future__ import annotations

import checked
import pytest
from support.device import Device


def test_times(device: Device, subtests: pytest.Subtests) -> None:
    if not device.simulated:
        pytest.skip("what is expected is exact in virtual time only")
    results = checked.run(device, "times", kernels="timed", card="A100-SXM-40GB", capacity="2G")
    checked.expect_passed(results, subtests)
