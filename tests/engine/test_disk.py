"""A disk below the host's memory; see checks/disk.py."""

from __future__ import annotations

from pathlib import Path

import checked
import pytest
from support.device import Device


@pytest.mark.parametrize("kernels", ["inline", "async"])
def test_disk(
    device: Device, tmp_path: Path, disk_folder: Path, subtests: pytest.Subtests, kernels: str
) -> None:
    if not device.simulated:
        pytest.skip("only the simulated device fails calls")
    env = {"DISK_FOLDER": str(disk_folder), "PYTORCH_LMS_HOST_LEDGER": str(tmp_path / "ledger")}
    results = checked.run(device, "disk", capacity="256M", kernels=kernels, env=env)
    checked.expect_passed(results, subtests)
