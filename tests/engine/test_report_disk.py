"""A step that uses a disk, in virtual time: a report of it, its statistics and its replay agree."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lms_cli import simulate
from lms_cli.trace import reader, replaying
from reports import CARD, TRAINING, done, on, took
from support.device import Device

LIMITS = {"PYTORCH_LMS_HOST_LIMIT": "256M", "PYTORCH_LMS_CONF": "recompute:off"}
STEPS = 4
WITH_DISK = f"""{TRAINING}
import json, simcuda
model, step = train(1024, 2048)
for _ in range(3):
    step()
torch.cuda.synchronize()
before, begin, busy = torch.cuda.lms.stats(), simcuda.virtual_time(), simcuda.busy()
with torch.cuda.lms.report(sys.argv[1], model=model):
    for _ in range({STEPS}):
        step()
torch.cuda.synchronize()
stats = {{name: value - before[name] for name, value in torch.cuda.lms.stats().items()}}
ms = (simcuda.virtual_time() - begin) / 1e6 / {STEPS}
computes, disk = simcuda.busy().compute - busy.compute, simcuda.busy().disk - busy.disk
print(json.dumps(stats | {{"ms": ms, "computes": computes, "disk": disk}}))
"""


def test_with_a_disk(device: Device, disk_folder: Path, tmp_path: Path) -> None:
    if not device.simulated:
        pytest.skip("needs the timed mode of the simulated device")
    env = LIMITS | {"PYTORCH_LMS_DISK": f"{disk_folder}:800G"}
    paths = [tmp_path / f"{number}.json" for number in range(2)]
    first, second = (
        json.loads(done(device, WITH_DISK, path, env=env, **(CARD | {"capacity": "512M"})))
        for path in paths
    )
    # Each run is the same to the nanosecond.
    assert first == second and first["disk"] > 0
    assert paths[0].read_text() == paths[1].read_text()
    check_report(paths[0], first)
    check_replay(device, tmp_path / "trace.jsonl", first)


def check_report(path: Path, stats: dict[str, Any]) -> None:
    for lane, name in (("disk to host", "disk_read"), ("host to disk", "disk_write")):
        assert len(on(lane, path)) == stats[f"lms.{name}.copies"] > 20
        assert took(lane, path) == pytest.approx(stats[f"lms.{name}.us"] / 1000, rel=0.01)
    assert any("was read from disk" in event["args"]["why"] for event in on("stands still", path))
    assert any("down.weight" in event["name"] for event in on("disk to host", path))
    # Where the host waits within an operator, the operator is not running.
    assert took("computes", path) == pytest.approx(stats["computes"] / 1e6, rel=0.05)


def check_replay(device: Device, trace: Path, stats: dict[str, Any]) -> None:
    """The same steps after the third, recorded where they fit."""
    code = (
        f"{TRAINING}\nmodel, step = train(1024, 2048)\nfor _ in range({3 + STEPS}):\n    step()\n"
    )
    done(device, code, env={"PYTORCH_LMS_TRACE": str(trace)}, **(CARD | {"capacity": "40G"}))
    card = simulate.card(CARD["card"]) | {"memory": 486 << 20}  # LMS's limit in 512 MiB
    machine = replace(replaying.machine_of(card), host=256 << 20, disk=800 << 30)
    found = replaying.replay(reader.read(trace), machine, "planned", recompute=False).report()
    # Reached when this was written: 6 % less time, bytes within 3 %.
    assert found["step_us"] / 1e3 == pytest.approx(stats["ms"], rel=0.1)
    for name, bytes_ in (("disk_read", "read_bytes"), ("disk_write", "written_bytes")):
        assert STEPS * found[bytes_] == pytest.approx(stats[f"lms.{name}.bytes"], rel=0.1)
