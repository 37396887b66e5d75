"""Libraries give the same bits with LMS; see tests/programs/features/libraries.py."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from lms_cli import lms_environment, paths, releases
from support import features, torchrun
from support.device import Device
from support.programs import Programs, programs_on

LOCK = paths.LOCKS / "libraries.lock"
MANY_MODELS = paths.ROOT / "docs/examples/many_models.py"
FEATURES = [one for one in features.listed() if one.needs_libraries]


@pytest.fixture(scope="module")
def with_libraries(device: Device) -> Device:
    """Runs programs in an environment with the libraries."""
    if version("torch").partition("+")[0] != releases.default(paths.PATCHES).version:
        pytest.skip("the libraries are locked for the default release")
    base = lms_environment.Environment(Path(sys.prefix))
    python = lms_environment.with_lock(base, LOCK).python
    return replace(device, python=str(python))


@pytest.fixture(scope="module")
def programs(with_libraries: Device) -> Iterator[Programs]:
    with programs_on(with_libraries, capacity="2G") as programs:
        yield programs


@pytest.mark.parametrize("feature", features.parameters(FEATURES))
def test_library(device: Device, programs: Programs, feature: features.Listed) -> None:
    features.compare(device, programs, feature)


@pytest.mark.compatibility("Libraries", "`lightning.Trainer`, data parallel", "works")
def test_lightning_with_several_processes(with_libraries: Device) -> None:
    rows = torchrun.run(with_libraries, "nccl", "lightning_trainer")
    torchrun.check(rows, "lightning_trainer")


def test_example_of_many_models(with_libraries: Device) -> None:
    """docs/examples: the losses do not depend on LMS, which moves something in every step."""
    options = ("--model", "resnet18", "--image-size", 64, "--batch-size", 4, "--steps", 3)
    tables = []
    for lms in ((), ("--lms", "--limit", 0.11)):
        done = with_libraries.run(MANY_MODELS, *options, *lms, capacity="2G")
        assert done.status == 0, done.stderr
        headings, *rows = (line.split() for line in done.stdout.splitlines())
        assert headings[:2] == ["step", "loss"]
        tables.append(rows)
    off, on = tables
    assert [row[1] for row in on] == [row[1] for row in off]
    moved = [(float(row[3]), float(row[4])) for row in on]
    assert len(moved) == 3
    assert all(to_device > 0 and to_host > 0 for to_device, to_host in moved)
