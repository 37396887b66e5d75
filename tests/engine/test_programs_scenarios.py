"""Streams, threads, devices and the like give the same bits with LMS; see scenarios.py."""

from __future__ import annotations

from collections.abc import Iterator
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
