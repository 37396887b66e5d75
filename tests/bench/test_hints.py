"""Where requests differ there is no plan, and a hint keeps most weights on the device."""

from __future__ import annotations

import pytest
from lms_cli import paths
from support.device import Device

PROGRAM = paths.ROOT / "docs" / "benchmarks" / "hints.py"


# Reached when this was written: 2.7 times.
def test_weights_that_are_kept(device: Device) -> None:
    if not device.simulated:
        pytest.skip("needs the timed mode of the simulated device")

    def run(hint: str) -> float:
        settings = {"kernels": "timed", "card": "A100-SXM-40GB", "capacity": 40 << 30}
        variables = {
            "PYTORCH_LMS": "1",
            "PYTORCH_LMS_LIMIT": str(40 << 30),
            "PYTORCH_LMS_HOST_LIMIT": str(512 << 30),
        }
        arguments = ("--program", "requests that differ", "--hint", hint)
        return float(device.json(PROGRAM, *arguments, **settings, env=variables))

    assert run("none") / run("keep") > 2
