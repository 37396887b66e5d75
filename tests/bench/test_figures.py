"""Figures of one large workload that must not get worse: BERT-large on an A100 with 40 GB.

All in virtual time, so the same in every run. The margins are for changes that are neither better
nor worse: what a policy does hangs on details, and a few MiB more or less change the time of an
iteration by 2 or 3 %.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from lms_cli import simulate
from lms_cli.bench import cells, lower_bounds
from lms_cli.bench.lower_bounds import Bound
from lms_cli.trace import reader, replaying
from lms_cli.trace.replaying import Machine
from lms_cli.verbs import trace
from support.device import Device

CARD = "A100-SXM-40GB"
WORKLOAD = ["--workload", "bert-large", "--batch", "64"]
NEED = 38413533184  # bytes that it reserves on a device that never fills
SHORT = (1.5, 2, 3.7)  # need over memory


def capacity_at(ratio: float) -> int:
    return int(NEED / ratio) // cells.PIECE * cells.PIECE


@dataclass
class Bert:
    """Runs it, each way once."""

    device: Device
    folder: Path
    known: dict[tuple[str, float], dict[str, Any]] = field(default_factory=dict)

    def run(self, rival: str, ratio: float) -> dict[str, Any]:
        if (rival, ratio) not in self.known:
            capacity = capacity_at(ratio)
            variables = {
                "PYTORCH_LMS_LIMIT": str(capacity),
                "PYTORCH_LMS_HOST_LIMIT": str(cells.HOST_LIMIT),
            }
            found = self.device.json(
                *(cells.PROGRAM, *WORKLOAD, "--rival", rival),
                **{"kernels": "timed", "card": CARD, "capacity": capacity, "env": variables},
            )
            assert found["status"] == "ok", found
            self.known[rival, ratio] = found
        return self.known[rival, ratio]

    def record(self) -> Path:
        """Its trace, by `lms trace record` on the simulated device that the tests use."""
        out = self.folder / "bert.jsonl"
        if not out.exists():
            parser = argparse.ArgumentParser()
            trace.configure_parser(parser.add_subparsers())
            options = ["--environment", sys.prefix, "--device", "sim", "--card", CARD]
            options += ["--capacity", "4T"]
            program = [str(cells.PROGRAM), *WORKLOAD, "--rival", "lms_copies"]
            args = parser.parse_args(["trace", "record", str(out), *options, *program])
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(simulate, "build", lambda environment: self.device.build)
                assert trace.record(args) == 0
        return out

    def bound(self, ratio: float) -> Bound:
        recorded = reader.read(self.record())
        return lower_bounds.bound(recorded, capacity_at(ratio), simulate.card(CARD))


@pytest.fixture(scope="module")
def bert(device: Device, tmp_path_factory: pytest.TempPathFactory) -> Bert:
    if not device.simulated:
        pytest.skip("needs the timed mode of the simulated device")
    return Bert(device, tmp_path_factory.mktemp("bert"))


def machine_at(ratio: float) -> Machine:
    card = replaying.machine_of(simulate.card(CARD))
    return replace(card, capacity=capacity_at(ratio))


# --- the engine ---


def test_what_fits_costs_nothing(bert: Bert) -> None:
    ideal = bert.run("ideal", 0.001)
    assert ideal["peak_reserved_bytes"] == NEED
    found = bert.run("lms", 0.9)
    assert (found["h2d_bytes"], found["d2h_bytes"]) == (0, 0)
    assert found["step_ns"] == pytest.approx(ideal["step_ns"], rel=0.01)


@pytest.mark.parametrize("ratio", SHORT)
def test_it_is_faster_than_the_original(bert: Bert, ratio: float) -> None:
    assert bert.run("lms", ratio)["step_ns"] < bert.run("original", ratio)["step_ns"]


# Of the ideal, reached when this was written: 91, 85 and 68 %. Checkpointing reaches 76 %, where it
# has the memory.
@pytest.mark.parametrize(("ratio", "least"), [(1.5, 0.87), (2, 0.81), (3.7, 0.62)])
def test_what_is_made_again_need_not_be_copied(bert: Bert, ratio: float, least: float) -> None:
    ideal, found = bert.run("ideal", 0.001), bert.run("lms", ratio)
    assert ideal["step_ns"] / found["step_ns"] >= least
    assert found["lms_step"]["lms.recompute.bytes"] > 0
    assert 0 < found["busy_ns"]["again"] < found["busy_ns"]["compute"] - ideal["step_ns"] * 0.9
    assert found["h2d_bytes"] < bert.run("lms_copies", ratio)["h2d_bytes"] / 2


# Reached when this was written: 82.4, 88.1 and 93.4 % of the floor; at most 1.08 times the bytes
# of the bound in either direction.
@pytest.mark.parametrize(("ratio", "least"), [(1.5, 0.79), (2, 0.85), (3.7, 0.90)])
def test_a_share_of_the_floor(bert: Bert, ratio: float, least: float) -> None:
    found, bound = bert.run("lms_copies", ratio), bert.bound(ratio)
    assert least < bound.floor_ns / found["step_ns"] <= 1
    assert found["h2d_bytes"] < 1.15 * bound.h2d_bytes
    assert found["d2h_bytes"] < 1.15 * bound.d2h_bytes


# The third begins with the optimizer's state where the second, the first that had any, has left
# it. Reached when this was written: at most 1.11 and 1.15 times as long as the later ones.
@pytest.mark.parametrize("ratio", SHORT)
def test_it_has_learnt_in_the_second_iteration(bert: Bert, ratio: float) -> None:
    first, second, third, *later = bert.run("lms_copies", ratio)["steps_ns"]
    usual = sum(later) / len(later)
    assert max(second, third) < 1.2 * usual < first


# A program that never repeats itself: which layers an iteration has, and in which order, is chosen
# anew for each.
CHANGING = """
import json, random, simcuda, torch
choice = random.Random(0)
layers = [torch.nn.Linear(4096, 4096, device="cuda") for _ in range(24)]
model = torch.nn.ModuleList(layers)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
x = torch.zeros(8192, 4096, device="cuda")
marks = []
for _ in range(12):
    marks.append(max(simcuda.virtual_time(), simcuda.device_time()))
    y = x
    for layer in choice.sample(layers, 16):
        y = torch.relu(layer(y))
    y.mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
print(json.dumps((simcuda.virtual_time() - marks[2]) / 1e6))
"""


@pytest.mark.parametrize("capacity", ["2G", "3G"])  # of 5.7
def test_a_sequence_that_changes_costs_no_more_than_the_original(
    device: Device, capacity: str
) -> None:
    if not device.simulated:
        pytest.skip("needs the timed mode of the simulated device")
    times = {}
    for policy in ("planned", "original"):
        variables = {"PYTORCH_LMS": "1", "PYTORCH_LMS_CONF": f"policy:{policy}"}
        variables["PYTORCH_LMS_HOST_LIMIT"] = str(cells.HOST_LIMIT)
        settings = {"kernels": "timed", "card": CARD, "capacity": capacity, "env": variables}
        times[policy] = device.json("-c", CHANGING, **settings)
    assert times["planned"] <= times["original"]


# --- recording and replaying ---

# The largest differences, of the run's time. Of one cell, 2 % were wanted; docs/traces.md says what
# is missing.
MEAN, SINGLE = 0.02, 0.06


def test_a_replay_takes_as_long_as_the_program(bert: Bert) -> None:
    recorded = reader.read(bert.record())
    fits = replaying.replay(recorded, machine_at(0.5), "planned", recompute=False).report()
    assert fits["step_us"] == pytest.approx(bert.run("lms", 0.9)["step_ns"] / 1e3, rel=0.005)
    shares = []
    for ratio in SHORT:
        run = bert.run("lms_copies", ratio)
        replayed = replaying.replay(
            recorded, machine_at(ratio), "planned", recompute=False
        ).report()
        shares.append(1e3 * replayed["step_us"] / run["step_ns"])
        assert replayed["in_bytes"] == pytest.approx(run["h2d_bytes"], rel=SINGLE)
        assert replayed["out_bytes"] == pytest.approx(run["d2h_bytes"], rel=SINGLE)
    assert shares == pytest.approx([1] * len(shares), rel=SINGLE)
    assert sum(shares) / len(shares) == pytest.approx(1, rel=MEAN)
