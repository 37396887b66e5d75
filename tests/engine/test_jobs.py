"""Several models at once; see checks/jobs.py."""

from __future__ import annotations

import checked
import pytest
from support.device import Device


@pytest.mark.parametrize("mode", ["fits", "small", "chaos"])
def test_jobs(device: Device, subtests: pytest.Subtests, mode: str) -> None:
    results = checked.run(device, "jobs", mode, capacity="256M", kernels="async")
    checked.expect_passed(results, subtests)
