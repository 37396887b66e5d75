"""Bytes are made again where no two iterations are alike, and no plan is ever followed."""

from __future__ import annotations

from typing import Any

import pytest
from lms_cli import paths
from support.device import Device

PROGRAM = paths.ROOT / "docs" / "benchmarks" / "changing_sequence.py"
PIECE = 2 << 20  # bytes: what a limit is a multiple of


# Reached when this was written: 88 %. Without a plan LMS once copied only: 37 %.
def test_layers_left_out_at_random_are_made_again(device: Device) -> None:
    if not device.simulated:
        pytest.skip("needs the timed mode of the simulated device")

    def run(capacity: int, **variables: str) -> Any:
        variables |= {"PYTORCH_LMS_LIMIT": str(capacity), "PYTORCH_LMS_HOST_LIMIT": str(512 << 30)}
        settings = {"kernels": "timed", "card": "A100-SXM-40GB", "capacity": capacity}
        return device.json(PROGRAM, "--case", "layer drop", **settings, env=variables)

    ideal = run(1 << 40, PYTORCH_LMS="0")
    short = run(int(ideal["need"] / 1.5) // PIECE * PIECE, PYTORCH_LMS="1")
    assert ideal["step_ns"] / short["step_ns"] > 0.83
