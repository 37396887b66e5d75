"""Whole training programs give the same bits with LMS on, short of memory and under chaos."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.child import Child
from support.device import PROGRAMS, Device

RATIOS = {"gpt": 4.0, "resnet": 3.0, "lstm": 3.0, "recommender": 3.0}  # peak need over limit
OPTIMIZERS = ("sgd", "adamw_foreach", "adamw_fused")
OPTIONS = ("plain", "autocast", "checkpointing", "accumulation")
PAGE = 4096  # bytes; limits are multiples


@pytest.fixture(scope="session")
def trainer(device: Device) -> Iterator[Child]:
    """Trains on request."""
    program = PROGRAMS / "serve_training.py"
    with device.serve(program, capacity="1G", kernels="async") as child:
        yield child


def train(trainer: Child, run: dict[str, Any], mode: str, limit: int = 0) -> tuple[Any, Any]:
    """The outcome of a run and its memory."""
    answer = trainer.ask({"run": run, "mode": mode, "limit": limit})
    return answer["outcome"], answer["memory"]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", RATIOS)
def test_same_bits(trainer: Child, model: str, optimizer: str, option: str) -> None:
    run = {"model": model, "optimizer": optimizer, "option": option}
    expected, without = train(trainer, run, "off")
    limit = int(without["peak_allocated"] / RATIOS[model]) // PAGE * PAGE
    found, memory = {}, {}
    for mode in ("fits", "small", "chaos"):
        found[mode], memory[mode] = train(trainer, run, mode, limit)
    assert {mode: differing(expected, outcome) for mode, outcome in found.items()} == {
        "fits": [],
        "small": [],
        "chaos": [],
    }
    assert (memory["fits"]["paged_in"], memory["fits"]["paged_out"]) == (0, 0)
    assert memory["small"]["peak_reserved"] <= limit
    for mode in ("small", "chaos"):
        assert memory[mode]["paged_in"] > 0, mode


def differing(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Which of losses, weights, optimizer and outputs are not the same."""
    return [name for name in expected if expected[name] != found[name]]


def test_another_seed_differs(trainer: Child) -> None:
    """Everything that is compared depends on the training."""
    run = {"model": "gpt", "optimizer": "sgd", "option": "plain", "steps": 1}
    one, _ = train(trainer, {**run, "seed": 1}, "off")
    other, _ = train(trainer, {**run, "seed": 2}, "off")
    assert differing(one, other) == ["losses", "weights", "optimizer", "outputs"]


def test_digest_sees_one_bit(device: Device) -> None:
    code = """
import json, torch
from training import digest
weights = {"w": torch.ones(1000, device="cuda")}
before = digest(weights)
same = digest(weights)
weights["w"][500] = 1 + 2**-23
print(json.dumps([before == same, before == digest(weights)]))
"""
    found = device.json("-c", code, env={"PYTHONPATH": str(PROGRAMS)})
    assert found == [True, False]
