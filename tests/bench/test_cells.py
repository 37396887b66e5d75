"""Cells on the simulated device: the tiny workload with every rival, and all workloads once."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest
from lms_bench import catalogue
from lms_cli import simulate
from lms_cli.bench import cells, lower_bounds
from lms_cli.trace import reader
from lms_cli.verbs import bench
from simcuda import cards
from support.triton import needs_headers

CARD = "A100-SXM-40GB"
NEED = 306184192  # bytes that gpt-tiny reserves on an unlimited device


@pytest.fixture
def run_cell(device):
    """Runs a cell of gpt-tiny; what it printed, without what differs between machines."""
    if not device.simulated:
        pytest.skip("cells run in virtual time")

    def run(rival, capacity, *options):
        arguments = ["--workload", "gpt-tiny", "--batch", "8", "--rival", rival, *options]
        variables = {"PYTORCH_LMS_HOST_LIMIT": str(cells.HOST_LIMIT)}
        settings = {"kernels": "timed", "card": CARD, "driver_lock": True}
        found = device.json(
            *(cells.PROGRAM, *arguments), **settings, capacity=capacity, env=variables
        )
        assert found.pop("machine")["seconds"] > 0
        return found

    return run


@pytest.mark.parametrize(
    ("rival", "capacity"),
    [
        ("ideal", cells.UNLIMITED),
        ("lms", NEED // 2),
        ("original", NEED // 2),
        ("save_on_cpu", NEED // 2),
        ("checkpoint", NEED),
        ("activation_offload", NEED),
    ],
)
def test_a_rival_trains_and_takes_the_same_time_again(run_cell, rival, capacity):
    found = run_cell(rival, capacity)
    assert found["status"] == "ok", found
    assert found == run_cell(rival, capacity)
    competing = catalogue.named("rival", catalogue.RIVALS, rival)
    counted = 3 + competing.more
    assert len(found["steps_ns"]) == 3 + competing.learning + counted
    assert found["step_ns"] == pytest.approx(sum(found["steps_ns"][-counted:]) / counted)
    assert found["peak_reserved_bytes"] <= capacity
    moves = rival not in ("ideal", "checkpoint")
    assert (found["h2d_bytes"] > 1e7, found["d2h_bytes"] > 1e7) == (moves, moves)
    assert (found["busy_ns"]["h2d"] > 0, found["hidden"] is not None) == (moves, moves)
    if rival in ("lms", "original"):  # the engine and the device count the same bytes
        assert found["lms_step"]["lms.page_in.bytes"] == pytest.approx(found["h2d_bytes"])
        assert found["lms_step"]["lms.page_out.bytes"] == pytest.approx(found["d2h_bytes"])
    if rival == "ideal":
        assert found["peak_reserved_bytes"] == NEED
    assert 0 < found["busy_ns"]["compute"] <= found["step_ns"]
    assert max(end for spans in found["gantt"].values() for _, end in spans) <= found["gantt_ns"]


SHARE = 310378496  # bytes that each of two devices reserves where gpt-tiny is sharded


@pytest.mark.parametrize(
    ("rival", "capacity", "status"),
    [
        ("ideal", cells.UNLIMITED, "ok"),
        ("alone", SHARE // 2, "oom"),
        ("cpu_offload", int(SHARE / 1.25), "ok"),
        ("lms", SHARE // 2, "ok"),
    ],
)
def test_a_sharded_training(run_cell, rival, capacity, status):
    found = run_cell(rival, capacity, "--devices", "2")
    assert found["status"] == status, found
    if status != "ok":
        return
    if rival == "ideal":
        assert found["peak_reserved_bytes"] == SHARE
    assert found["peak_reserved_bytes"] <= capacity
    moves = rival != "ideal"
    assert (found["h2d_bytes"] > 1e7, found["d2h_bytes"] > 1e7) == (moves, moves)
    assert 0.4e6 < found["busy_ns"]["collective"] < 0.8e6
    if rival == "lms":
        assert found == run_cell(rival, capacity, "--devices", "2")


def test_nothing_moves_when_it_fits(run_cell):
    found = run_cell("lms", int(NEED / 0.9))
    assert (found["h2d_bytes"], found["d2h_bytes"], found["hidden"]) == (0, 0, None)
    assert found["lms"]["lms.page_out.bytes"] == 0


@needs_headers
def test_a_compiled_model_trains(run_cell):
    eager = run_cell("lms", int(NEED / 0.9))
    compiled = run_cell("lms", int(NEED / 0.9), "--compile")
    assert compiled["status"] == "ok", compiled
    assert 0.7 < compiled["busy_ns"]["compute"] / eager["busy_ns"]["compute"] < 0.95
    assert compiled["lms"]["lms.page_out.bytes"] == 0


@pytest.mark.parametrize(
    ("rival", "status", "reason"),
    [
        ("checkpoint", "oom", "CUDA out of memory."),
        ("accelerate", "failed", "ModuleNotFoundError: No module named 'accelerate'"),
    ],
)
def test_a_rival_that_fails_says_why(run_cell, rival, status, reason):
    found = run_cell(rival, NEED // 4 if status == "oom" else NEED)
    assert found["status"] == status and found["reason"].startswith(reason)


# Parameters in millions, and how many of them are learnt.
SIZES = {
    "bert-large": (335, 335),
    "gpt2-xl": (1558, 1558),
    "llama-7b": (6738, 6738),
    "llama-7b-lora": (6747, 8),
    "vit-l16": (304, 304),
    "resnet152": (60, 60),
    "unet3d": (31, 31),
    "lstm": (135, 135),
    "dlrm": (3330, 3330),
}
EVERY_WORKLOAD = """
import gc, json, torch
from lms_bench import catalogue
sizes = {}
for workload in catalogue.WORKLOADS:
    if workload.usual:
        training = workload.build(1, "cuda")
        training.step()
        assert not training.untrained(), (workload.name, training.untrained())
        counts = [(p.numel(), p.requires_grad) for p in training.model.parameters()]
        sizes[workload.name] = [
            sum(count for count, _ in counts), sum(count for count, learnt in counts if learnt)
        ]
        assert set(training.blocks) <= set(training.model.modules())
        training = None
        gc.collect()
        assert torch.cuda.memory_allocated() < 1 << 28, workload.name
print(json.dumps(sizes))
"""


def test_every_workload_is_the_model_it_says(device):
    if not device.simulated:
        pytest.skip("not all of them fit a real device")
    settings = {"kernels": "timed", "card": CARD, "capacity": cells.UNLIMITED}
    sizes = device.json("-c", EVERY_WORKLOAD, **settings)
    millions = {
        name: tuple(round(count / 1e6) for count in counts) for name, counts in sizes.items()
    }
    assert millions == SIZES


@pytest.fixture
def command(device, tmp_path, monkeypatch, capsys):
    """Runs `lms bench` with a rival on gpt-tiny; what it printed, and results.json."""
    if not device.simulated:
        pytest.skip("cells run in virtual time")
    monkeypatch.setattr(simulate, "build", lambda environment: device.build)

    def run(rival, *options, ratio=2, out=tmp_path):
        parser = argparse.ArgumentParser()
        bench.configure_parser(parser.add_subparsers())
        arguments = ["bench", "--workload", "gpt-tiny", "--rival", rival]
        arguments += ["--ratio", f"{ratio:g}"]
        arguments += ["--parallel", "1", "--environment", sys.prefix, "--out", str(out)]
        args = parser.parse_args([*arguments, "--markdown", str(tmp_path / "tables.md"), *options])
        assert bench.execute(args) == 0
        return capsys.readouterr(), json.loads((out / "results.json").read_text())

    return run


def test_the_whole_command(command, tmp_path):
    shown, results = command("lms")
    assert "gpt-tiny, batch 8, A100-SXM-40GB: lms at 2: " in shown.err
    assert f"results: {tmp_path / 'results.json'}" in shown.out
    ideal, lms = results["cells"]
    assert (ideal["rival"], ideal["of_ideal"], lms["rival"]) == ("ideal", 1, "lms")
    assert 0 < lms["of_ideal"] < 1 and lms["peak_reserved_bytes"] <= lms["capacity_bytes"]
    assert "| lms |" in (tmp_path / "tables.md").read_text()
    pictures = [Path(line[9:]) for line in shown.out.splitlines() if line.startswith("picture: ")]
    assert len(pictures) == 2 and all(path.is_file() for path in pictures)


def test_the_whole_command_with_a_disk(command, disk_folder):
    options = ("--host", "64M", "--disk", "800G")
    shown, results = command("lms_copies", *options, ratio=1.6, out=disk_folder)
    assert results["command"].endswith(" ".join(options))
    title = "gpt-tiny, batch 8, A100-SXM-40GB, 0.0625 GiB of host memory and a disk"
    assert f"{title}: lms_copies at 1.6: " in shown.err
    ideal, lms = results["cells"]
    for cell in (ideal, lms):
        assert (cell["title"], cell["host"], cell["disk"]) == (title, 64 << 20, 800 << 30)
    assert lms["peak_page_locked_bytes"] <= lms["host"]
    # It was used, and its time is the card's; nobody who trains the ideal sees it.
    moved = [lms["lms_step"][f"lms.disk_{way}.bytes"] for way in ("read", "write")]
    card = cards.card(CARD)["disk"]
    assert min(moved) > 1e7
    expected = 1e9 * (moved[0] / card["read"] + moved[1] / card["write"])
    assert lms["busy_ns"]["disk"] == pytest.approx(expected, rel=0.05)
    assert not ideal["busy_ns"].get("disk")
    # The bound and the replay are of a machine with the same.
    bound = lms["bound"]
    assert bound["replay_ns"] > bound["floor_ns"] > bound["step_ns"]
    (trace,) = (disk_folder / "traces").iterdir()
    capacity = lms["capacity_bytes"]
    without = lower_bounds.bound(reader.read(trace), capacity, simulate.card(CARD))
    assert without.floor_ns < bound["floor_ns"] and without.replay_ns < bound["replay_ns"]
    assert list(disk_folder.glob("*-disk-gantt.png"))
