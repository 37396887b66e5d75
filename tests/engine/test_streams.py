"""Gradients that cross streams, and memory that does; see checks/streams.py and lending.py."""

from __future__ import annotations

import checked
import pytest
from support.device import Device


@pytest.mark.parametrize("lms", ["1", "chaos"])
def test_gradients_cross_streams(device: Device, subtests: pytest.Subtests, lms: str) -> None:
    results = checked.run(
        device, "streams", capacity="256M", kernels="async", env={"PYTORCH_LMS": lms}
    )
    checked.expect_passed(results, subtests)


@pytest.mark.parametrize("schedule", [None, "early"])
def test_memory_is_lent(device: Device, subtests: pytest.Subtests, schedule: str | None) -> None:
    results = checked.run(device, "lending", capacity="256M", kernels="async", schedule=schedule)
    checked.expect_passed(results, subtests)
