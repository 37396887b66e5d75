"""A process that uses LMS ends, fails and forks as one that does not; see checks/process.py."""

from __future__ import annotations

import checked
import pytest
from support.device import Device

TIMES = 4  # what depends on the order of threads at exit shows now and then


@pytest.mark.parametrize("kernels", ["inline", "async"])
def test_process(device: Device, subtests: pytest.Subtests, kernels: str) -> None:
    done = device.run(
        checked.CHECKS / "process.py", "on", TIMES, capacity="64M", devices=2, kernels=kernels
    )
    assert done.status == 0, done.stderr
    checked.expect_passed(checked.read(done), subtests)
