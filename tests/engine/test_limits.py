"""The limit of device memory follows what the card turns out to have."""

from __future__ import annotations

from pathlib import Path

import checked
import headers
import pytest
from support.device import Device

EXTENSION = Path(__file__).with_name("extensions") / "workspaces.cpp"
TRAINING = checked.CHECKS / "crowded.py"


@pytest.fixture(scope="module")
def digest(device: Device) -> str:
    if not device.simulated:
        pytest.skip("a GPU has too much memory: it takes one whose capacity can be chosen")
    result: str = device.json(TRAINING, "off", capacity="512M")["digest"]
    return result


@pytest.mark.parametrize("kernels", ["inline", "async"])
@pytest.mark.parametrize("mode", ["pieces", "default", "limit"])
def test_somebody_else_takes_a_tenth(device: Device, digest: str, mode: str, kernels: str) -> None:
    done = device.json(TRAINING, mode, capacity="128M", kernels=kernels)
    assert done["digest"] == digest
    assert done["taken"] >= done["card"] // 10, "the other did not get its memory"
    assert done["limit"] <= (done["card"] - done["taken"]) * 0.96
    assert done["reserved"] <= done["limit"]
    assert done["free"] >= done["card"] // 50, "nothing is left for the next one"
    assert done["failures"] <= 2, "what the driver refused once was asked for again"
    assert done["late_failures"] == 0
    assert done["errors"] == 0, "the program got no error"
    assert done["late_allocations"] == 0


def test_workspaces(device: Device, subtests: pytest.Subtests, tmp_path: Path) -> None:
    """cuDNN's benchmark mode is told what could be had, whatever is resident."""
    if not device.simulated:
        pytest.skip("a GPU has too much memory: it takes one whose capacity can be chosen")
    library = tmp_path / "workspaces.so"
    headers.compile_extension(EXTENSION, library, headers.of_this_wheel(), "-O1")
    results = checked.run(device, "workspaces", library, capacity="256M")
    checked.expect_passed(results, subtests)


def test_workspaces_of_cublas(device: Device, subtests: pytest.Subtests) -> None:
    """They lie apart from what is paged."""
    if not device.simulated:
        pytest.skip("a GPU has too much memory: it takes one whose capacity can be chosen")
    env = {"CUBLAS_WORKSPACE_CONFIG": ":1024:2:16:8", "CUBLASLT_WORKSPACE_SIZE": "2048"}
    env["TORCH_CUBLAS_WORKSPACE_CACHE"] = "1"  # otherwise PyTorch 2.15 keeps none
    results = checked.run(device, "blas_workspaces", capacity="512M", cublas=True, env=env)
    checked.expect_passed(results, subtests)
