"""Out of memory still happens, says what to change, and loses nothing."""

from __future__ import annotations

import checked
import pytest
from support.device import Device


@pytest.mark.parametrize("kernels", ["inline", "async"])
def test_out_of_memory(device: Device, subtests: pytest.Subtests, kernels: str) -> None:
    results = checked.run(device, "out_of_memory", capacity="256M", devices=2, kernels=kernels)
    checked.expect_passed(results, subtests)


@pytest.mark.parametrize("kernels", ["inline", "async"])
def test_errors_that_count(device: Device, subtests: pytest.Subtests, kernels: str) -> None:
    if not device.simulated:
        pytest.skip("a GPU has too much memory: it takes one whose capacity can be chosen")
    results = checked.run(device, "errors_that_count", capacity="512M", kernels=kernels)
    checked.expect_passed(results, subtests)


ON_FIRST = """
import torch
torch.cuda.set_enabled_lms(True)
evicted = torch.ones(1 << 20, device="cuda")
try:
    torch.empty(1 << 30, device="cuda")
except torch.cuda.OutOfMemoryError:
    print(torch.cuda.memory_stats()["num_ooms"])
"""


def test_an_error_counts_once_where_lms_is_on_before_cuda_is(device: Device) -> None:
    if not device.simulated:
        pytest.skip("a GPU has too much memory: it takes one whose capacity can be chosen")
    assert device.json("-c", ON_FIRST, capacity="64M") == 1


MODES = {
    "on": {},
    "chaos": {"PYTORCH_LMS": "chaos"},
    "expandable": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
}


@pytest.mark.parametrize("mode", MODES)
def test_what_fits_runs(device: Device, subtests: pytest.Subtests, mode: str) -> None:
    if not device.simulated:
        pytest.skip("a GPU has too much memory: it takes one whose capacity can be chosen")
    results = checked.run(device, "gathering", capacity="2G", env=MODES[mode])
    checked.expect_passed(results, subtests)


@pytest.mark.parametrize("kernels", ["inline", "async"])
def test_storms(device: Device, kernels: str) -> None:
    """Limits change while threads run out of memory: none waits for ever, nothing is lost."""
    if not device.simulated:
        pytest.skip("a GPU has too much memory: it takes one whose capacity can be chosen")
    runs = {
        mode: device.json(checked.CHECKS / "storms.py", mode, 1000, capacity="64M", kernels=kernels)
        for mode in ("off", "on")
    }
    assert runs["on"]["digests"] == runs["off"]["digests"]
    assert runs["on"]["refused"] > 0, "memory never ran out: nothing was tested"
