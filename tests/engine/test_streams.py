"""Gradients that cross streams; see checks/streams.py."""

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
