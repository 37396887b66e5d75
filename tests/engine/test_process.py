"""A process that uses LMS ends, fails and forks as one that does not; see checks/process.py."""

from __future__ import annotations

import checked
import pytest
from support.device import Device

# What depends on the order of threads at exit shows now and then: where the device has some.
TIMES = {"inline": 1, "async": 2}


@pytest.mark.parametrize("kernels", TIMES)
def test_process(device: Device, subtests: pytest.Subtests, kernels: str) -> None:
    times = TIMES[kernels]
    done = device.run(
        checked.CHECKS / "process.py", "on", times, capacity="64M", devices=2, kernels=kernels
    )
    assert done.status == 0, done.stderr
    checked.expect_passed(checked.read(done), subtests)
