"""Backends of torch.distributed that go on after their operators have returned, and NCCL alone."""

from __future__ import annotations

from pathlib import Path

import checked
import headers
import pytest
from support.device import Device

SOURCE = Path(__file__).with_name("extensions") / "backend.cpp"


@pytest.mark.compatibility(
    "Several GPUs", "Backends that copy after their operators have returned, as NCCL", "works"
)
def test_backend(device: Device, subtests: pytest.Subtests, tmp_path: Path) -> None:
    library = tmp_path / "backend.so"
    headers.compile_extension(SOURCE, library, headers.of_this_wheel(), "-O1")
    results = checked.run(device, "collectives", library, kernels="async", capacity="256M")
    checked.expect_passed(results, subtests)


def test_nccl(device: Device, subtests: pytest.Subtests) -> None:
    if device.count < 2:
        pytest.skip("it takes 2 devices")
    results = checked.run(device, "nccl", kernels="async", capacity="256M", devices=2)
    checked.expect_passed(results, subtests)
