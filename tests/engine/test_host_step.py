"""Optimizers that step on the host; see checks/host_step.py."""

from __future__ import annotations

import checked
import pytest
from support.device import Device

MODES = {
    "off": {"PYTORCH_LMS": "0"},
    "fits": {"PYTORCH_LMS": "1"},
    "small": {"PYTORCH_LMS": "1", "PYTORCH_LMS_LIMIT": "24M", "EXPECT_PAGING": "1"},
    "chaos": {"PYTORCH_LMS": "chaos", "EXPECT_PAGING": "1"},
}


@pytest.mark.parametrize("mode", MODES)
def test_host_step(device: Device, subtests: pytest.Subtests, mode: str) -> None:
    # With this schedule a wait that is forgotten is seen.
    settings = {"kernels": "async", "schedule": "late", "capacity": "512M"}
    results = checked.run(device, "host_step", env=MODES[mode], **settings)
    checked.expect_passed(results, subtests)
