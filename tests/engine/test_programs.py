"""Whole training programs give the same bits with LMS on, short of memory and under chaos."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.device import Device
from support.programs import Programs, differing, programs_on

RATIOS = {"gpt": 4.0, "resnet": 3.0, "lstm": 3.0, "recommender": 3.0}  # peak need over limit
# With cuDNN a recurrent layer is one operator, and its storages must fit together.
CUDNN_RATIOS = {**RATIOS, "lstm": 1.5}
OPTIMIZERS = ("sgd", "adamw_foreach", "adamw_fused")
OPTIONS = ("plain", "autocast", "checkpointing", "accumulation")
# Every two of a model, an optimizer and an option meet in one of them.
TRAININGS = [
    (model, OPTIMIZERS[(i + j) % len(OPTIMIZERS)], option)
    for i, model in enumerate(RATIOS)
    for j, option in enumerate(OPTIONS)
]
# A CPU takes long for matrices of bfloat16: models with few activations.
WITH_AUTOCAST = {"gpt": "short_gpt", "resnet": "small_images", "lstm": "short_lstm"}


@pytest.fixture(scope="module")
def programs(device: Device) -> Iterator[Programs]:
    """Trains on request."""
    with programs_on(device) as programs:
        yield programs


@pytest.mark.parametrize(("model", "optimizer", "option"), TRAININGS)
def test_training(
    device: Device, programs: Programs, model: str, optimizer: str, option: str
) -> None:
    steps = 3 if option == "plain" else 2  # the second meets the optimizer's state
    name = WITH_AUTOCAST.get(model, model) if option == "autocast" else model
    run = {"model": name, "optimizer": optimizer, "option": option, "steps": steps}
    ratios = RATIOS if device.simulated else CUDNN_RATIOS
    programs.compare("train", ratios[model], run)


def test_another_seed_differs(programs: Programs) -> None:
    """Everything that is compared depends on the training."""
    run = {"model": "gpt", "optimizer": "sgd", "option": "plain", "steps": 1}
    one = programs.run("train", "off", run={**run, "seed": 1}).result
    other = programs.run("train", "off", run={**run, "seed": 2}).result
    assert differing(one, other) == ["losses", "optimizer", "outputs", "weights"]


def test_digest_sees_one_bit(device: Device) -> None:
    code = """
import json, torch
from lms_demo.training import digest
weights = {"w": torch.ones(1000, device="cuda")}
before = digest(weights)
same = digest(weights)
weights["w"][500] = 1 + 2**-23
print(json.dumps([before == same, before == digest(weights)]))
"""
    found = device.json("-c", code)
    assert found == [True, False]
