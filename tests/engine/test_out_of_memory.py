"""Out of memory still happens, says what to change, and loses nothing."""

from __future__ import annotations

import checked
import pytest
from support.device import Device


@pytest.mark.parametrize("kernels", ["inline", "async"])
def test_out_of_memory(device: Device, subtests: pytest.Subtests, kernels: str) -> None:
    results = checked.run(device, "out_of_memory", capacity="256M", devices=2, kernels=kernels)
    checked.expect_passed(results, subtests)
