"""Streams, threads, devices and the like give the same bits with LMS; see scenarios.py."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

import pytest
from packaging.version import Version
from support.device import Device
from support.programs import Programs, programs_on

# Peak need over limit. Less with several streams: they do not share the allocator's segments.
RATIOS = {
    "custom_function": 3.0,
    "data_loader": 3.0,
    "gradient_penalty": 3.0,
    "later_thread": 3.0,
    "parallel_threads": 1.5,
    "replicas": 3.0,
    "saved_and_loaded": 3.0,
    "side_stream": 1.5,
    "swapped_storages": 3.0,
    "two_devices": 3.0,
}
TWO_DEVICES = ("replicas", "two_devices")
ENDS, AT_ONCE = 8, 4  # of a program
RIGHT_AFTER_A_PASS = """
import torch
torch.cuda.set_enabled_lms(True)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)]).cuda()
for _ in range(2):
    model(torch.randn(16, 64, device="cuda")).sum().backward()
"""


@pytest.fixture(scope="module")
def programs(device: Device) -> Iterator[Programs]:
    """Runs scenarios on request."""
    with programs_on(device, devices=2) as programs:
        yield programs


@pytest.mark.parametrize("scenario", RATIOS)
def test_scenario(device: Device, programs: Programs, scenario: str) -> None:
    if scenario in TWO_DEVICES and device.count < 2:
        pytest.skip(f"{scenario} needs two devices, this machine has one GPU")
    if scenario == "swapped_storages" and Version(version("torch")) < Version("2.12"):
        pytest.skip("storages cannot be swapped before PyTorch 2.12")
    programs.compare(scenario, RATIOS[scenario])


def test_switched_midway(programs: Programs) -> None:
    """Without the limit's check: disabling brings everything back, beyond any limit."""
    off = programs.run("switched_midway", "off")
    limit = off.memory["peak_allocated"] // 3
    for mode in ("fits", "small", "chaos"):
        on = programs.run("switched_midway", mode, limit)
        assert on.result == off.result, mode
        assert (on.memory["paged_in"] > 0) == (mode != "fits"), mode


def test_a_program_ends_right_after_a_pass(device: Device) -> None:
    """With PyTorch 2.15 every second one aborts without LMS where cores are few."""
    settings = {"capacity": "64M", "env": {"OMP_NUM_THREADS": "2"}}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        started = [
            pool.submit(device.run, "-c", RIGHT_AFTER_A_PASS, **settings) for _ in range(ENDS)
        ]
    for done in started:
        assert done.result().status == 0, done.result().stderr
