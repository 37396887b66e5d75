"""Threads that compute on the same tensors while LMS moves them; see checks/races.py."""

from __future__ import annotations

import checked
import pytest
from support.device import Device

PROGRAM = checked.CHECKS / "races.py"
THREADS, ROUNDS = 4, 120


@pytest.fixture(scope="module")
def digest(device: Device) -> str:
    """Of all results, with LMS off."""
    return run(device, "off", "inline")


def run(device: Device, mode: str, kernels: str) -> str:
    done = device.run(PROGRAM, "installed", mode, THREADS, ROUNDS, capacity="64M", kernels=kernels)
    assert done.status == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kernels", ["inline", "async"])
@pytest.mark.parametrize("mode", ["on", "chaos"])
def test_results_do_not_depend_on_lms(device: Device, digest: str, mode: str, kernels: str) -> None:
    assert run(device, mode, kernels) == digest


def test_waits_for_the_device(device: Device, subtests: pytest.Subtests) -> None:
    """See checks/waiting.py; a thread that keeps a mutex while it waits never ends."""
    if not device.simulated:
        pytest.skip("only the simulated device counts calls")
    results = checked.run(
        device, "waiting", capacity="256M", devices=2, kernels="async", timeout=240
    )
    checked.expect_passed(results, subtests)
