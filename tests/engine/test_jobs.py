"""Several models at once; see checks/jobs.py, jobs_on_devices.py and jobs_in_time.py."""

from __future__ import annotations

import re

import checked
import pytest
from lms_cli import paths
from support.device import Device

MODES = ("fits", "small", "chaos")


@pytest.mark.compatibility(
    "Threads and processes", "Jobs that take turns on a device: `torch.cuda.lms.jobs`", "works"
)
@pytest.mark.parametrize("mode", MODES)
def test_jobs(device: Device, subtests: pytest.Subtests, mode: str) -> None:
    results = checked.run(device, "jobs", mode, capacity="256M", kernels="async")
    checked.expect_passed(results, subtests)


@pytest.mark.compatibility(
    "Threads and processes", "Jobs that take turns on several devices, and move", "works"
)
@pytest.mark.parametrize("mode", MODES)
def test_jobs_on_two_devices(device: Device, subtests: pytest.Subtests, mode: str) -> None:
    if device.count < 2:
        pytest.skip("it takes two devices")
    settings = {"capacity": "256M", "kernels": "async", "devices": 2}
    results = checked.run(device, "jobs_on_devices", mode, **settings)
    checked.expect_passed(results, subtests)


def test_turns_in_time(device: Device, subtests: pytest.Subtests) -> None:
    if not device.simulated:
        pytest.skip("a real device's times are others in each run")
    settings = {"kernels": "timed", "card": "A100-SXM-40GB"}
    checked.expect_passed(checked.run(device, "jobs_in_time", **settings), subtests)


def test_example(device: Device) -> None:
    """Learning rates that train together end as they do alone, but for the worst."""

    def ends(*rates: str) -> dict[str, tuple[str, str]]:
        example = paths.ROOT / "docs" / "examples" / "model_selection.py"
        settings = {"env": {"PYTORCH_LMS_LIMIT": "40M"}, "capacity": "2G", "kernels": "async"}
        options = ("--steps", 9, "--width", 256, "--turn-seconds", 0.01)
        done = device.run(example, *options, "--rates", *rates, **settings)
        assert done.status == 0, done.stderr
        line = re.compile(r"rate (\S+): (\w+) after \d+ steps, loss (\S+)")
        return {rate: (state, loss) for rate, state, loss in line.findall(done.stdout)}

    together = ends("0.1", "0.01", "0.0001")
    assert sorted(state for state, _ in together.values()) == ["cancelled", "done", "done"]
    for rate, (state, loss) in together.items():
        if state == "done":
            assert ends(rate) == {rate: (state, loss)}
