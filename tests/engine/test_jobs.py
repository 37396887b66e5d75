"""Several models at once; see checks/jobs.py, jobs_on_devices.py and jobs_in_time.py."""

from __future__ import annotations

import checked
import pytest
from support.device import Device

MODES = ("fits", "small", "chaos")


@pytest.mark.parametrize("mode", MODES)
def test_jobs(device: Device, subtests: pytest.Subtests, mode: str) -> None:
    results = checked.run(device, "jobs", mode, capacity="256M", kernels="async")
    checked.expect_passed(results, subtests)


@pytest.mark.parametrize("mode", MODES)
def test_jobs_on_two_devices(device: Device, subtests: pytest.Subtests, mode: str) -> None:
    if device.count < 2:
        pytest.skip("it takes two devices")
    settings = {"capacity": "256M", "kernels": "async", "devices": 2}
    results = checked.run(device, "jobs_on_devices", mode, **settings)
    checked.expect_passed(results, subtests)


def test_turns_in_time(device: Device, subtests: pytest.Subtests) -> None:
    if not device.simulated:
        pytest.skip("a real device's times are others in each run")
    settings = {"kernels": "timed", "card": "A100-SXM-40GB"}
    checked.expect_passed(checked.run(device, "jobs_in_time", **settings), subtests)
