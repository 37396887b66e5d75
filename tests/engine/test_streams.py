"""Gradients that cross streams, memory that does, and streams that are gone.

See checks/streams.py, lending.py and external_streams.py.
"""

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


@pytest.mark.parametrize("lms", ["1", "chaos"])
@pytest.mark.parametrize("schedule", [None, "late"])
def test_external_streams(
    device: Device, subtests: pytest.Subtests, lms: str, schedule: str | None
) -> None:
    if not device.simulated:
        pytest.skip("a GPU does not say that a destroyed stream was used")
    results = checked.run(
        device,
        "external_streams",
        capacity="256M",
        kernels="async",
        schedule=schedule,
        env={"PYTORCH_LMS": lms},
    )
    checked.expect_passed(results, subtests)
