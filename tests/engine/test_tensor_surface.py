"""A tensor that is paged out answers everything a user asks of it."""

from __future__ import annotations

import checked
import pytest
from support.device import Device


@pytest.mark.parametrize("lms", ["1", "chaos"])
@pytest.mark.parametrize("program", ["reading", "addresses", "saving", "changing"])
def test_surface(device: Device, subtests: pytest.Subtests, program: str, lms: str) -> None:
    results = checked.run(device, f"surface_{program}", capacity="256M", env={"PYTORCH_LMS": lms})
    checked.expect_passed(results, subtests)
