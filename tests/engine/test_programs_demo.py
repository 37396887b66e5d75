"""The demonstration's program reports what it is asked for, on a quarter of what it needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.device import SCRIPTS, Device

RATIO = 4  # peak need over device memory
STEPS = 2
PAGE = 4096  # bytes; the limit is a multiple
UNLIMITED = "256G"  # address space of a simulated device that never fills


def train(device: Device, model: str, mode: str, folder: Path, limit: int = 0) -> dict[str, Any]:
    """The report of one run; the limit is the simulated device's capacity, or LMS's on a GPU."""
    report = folder / f"{mode}.json"
    arguments = ["--model", model, "--mode", mode, "--steps", STEPS, "--json", report]
    if limit and not device.simulated:
        arguments += ["--limit", limit]
    done = device.run(SCRIPTS / "lms_demo" / "train.py", *arguments, capacity=limit or UNLIMITED)
    assert done.status == 0, done.stderr[-2000:]
    return json.loads(report.read_text())


@pytest.mark.parametrize("model", ["gpt", "resnet"])
def test_demo(device: Device, tmp_path: Path, model: str) -> None:
    unlimited = train(device, model, "unlimited", tmp_path)
    assert unlimited["status"] == "ok"
    assert unlimited["needed_bytes"] >= 400 << 20
    assert unlimited["paged_in_bytes"] == unlimited["paged_out_bytes"] == 0
    limit = int(unlimited["needed_bytes"] / RATIO) // PAGE * PAGE

    off = train(device, model, "off", tmp_path, limit)
    assert (off["status"], off["weights_sha256"]) == ("oom", "")
    assert "out of memory" in off["error"]

    on = train(device, model, "on", tmp_path, limit)
    assert (on["status"], on["steps"], on["error"]) == ("ok", STEPS, "")
    assert on["losses"] == unlimited["losses"] and len(on["losses"]) == STEPS
    assert on["weights_sha256"] == unlimited["weights_sha256"] != ""
    assert on["peak_device_bytes"] <= limit
    assert min(on["paged_in_bytes"], on["paged_out_bytes"]) > 0
    check_timeline(on["timeline"], limit, on["host_peak_bytes"])


def check_timeline(timeline: list[list[int]], limit: int, host_peak: int) -> None:
    """Numbered upwards, within the limits, and with bytes on both sides."""
    numbers, on_device, on_host = zip(*timeline, strict=True)
    assert 100 <= len(timeline) <= 2000
    assert list(numbers) == sorted(set(numbers))
    assert 0 < max(on_device) <= limit
    assert 0 < max(on_host) <= host_peak
