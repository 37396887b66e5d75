"""Libraries give the same bits with LMS; see tests/programs/features/libraries.py."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from lms_bench.catalogue import ITERATIONS
from lms_cli.plan.running import RUNNER
from lms_cli.site import notebooks
from support import features, torchrun
from support.device import PROGRAMS, Device
from support.programs import Programs, programs_on

MIB = 1 << 20
LOSS = r"loss\W+(\d+\.\d+)"
TABLE = "many_models"  # the example that prints one
# The device memory that LMS may use, and how many processes.
OTHER_EXAMPLES = [
    *((name, limit, 1) for name, limit in notebooks.LIMITS.items() if name != TABLE),
    ("long_sequences", 80 * MIB, 1),
    ("sharded", 32 * MIB, torchrun.PROCESSES),
]
STEPS = 2  # of an example: the second meets the optimizer's state
PLANNED = ("fine_tune", "long_sequences", "volumes")  # of a library with a loop of its own
FEATURES = [one for one in features.listed() if one.needs_libraries]


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


def test_saving_holds_nothing(with_libraries: Device) -> None:
    """Models larger than the limit are saved and loaded as they are, and stay movable."""
    env = {"PYTORCH_LMS": "1", "PYTORCH_LMS_LIMIT": str(40 * MIB)}
    held = with_libraries.json(PROGRAMS / "save_models.py", env=env, capacity="2G")
    assert len(held) == 19
    assert held == dict.fromkeys(held, 0)


def printed_without_and_with(
    device: Device, example: str, limit: int, processes: int = 1
) -> list[str]:
    """What an example of docs/examples prints without LMS, and with a limit in bytes."""
    launcher = torchrun.launcher(device) if processes > 1 else ()
    printed = []
    for lms in ("--no-lms", "--lms"):
        done = device.run(
            *(*launcher, notebooks.FOLDER / f"{example}.py", "--steps", STEPS, lms),
            env={"PYTORCH_LMS_LIMIT": str(limit)},
            capacity="2G",
            devices=processes,
        )
        assert done.status == 0, done.stderr
        printed.append(done.stdout)
    return printed


def compare_with_the_notebook(name: str, losses: list[float]) -> None:
    """It shows what the example prints: the first losses, the same to three digits."""
    rows = json.loads((notebooks.FOLDER / f"{name}.ipynb").read_text())["cells"]
    shown = "".join(line for row in rows for out in row.get("outputs", []) for line in out["text"])
    pattern = r"^ +\d+ +(\d+\.\d+)" if name == TABLE else LOSS
    first = re.findall(pattern, shown, re.MULTILINE)[:2]
    assert losses[:2] == pytest.approx([float(loss) for loss in first], rel=1e-3)


def test_example_of_many_models(with_libraries: Device) -> None:
    """The losses do not depend on LMS, which moves something in every step."""
    tables = []
    for text in printed_without_and_with(with_libraries, TABLE, notebooks.LIMITS[TABLE]):
        headings, *rows = (line.split() for line in text.splitlines())
        assert headings[:2] == ["step", "loss"]
        tables.append(rows)
    off, on = tables
    assert [row[1] for row in on] == [row[1] for row in off]
    moved = [(float(row[3]), float(row[4])) for row in on]
    assert len(moved) == STEPS
    assert all(to_device > 0 and to_host > 0 for to_device, to_host in moved)
    compare_with_the_notebook(TABLE, [float(row[1]) for row in on])


@pytest.mark.parametrize(("name", "limit", "processes"), OTHER_EXAMPLES)
def test_example(with_libraries: Device, name: str, limit: int, processes: int) -> None:
    """The losses do not depend on LMS, which moves something."""
    printed = printed_without_and_with(with_libraries, name, limit, processes=processes)
    losses = []
    for text, pages in zip(printed, (False, True), strict=True):
        moved = [int(mib) for mib in re.findall(r"paged in (\d+) MiB", text)]
        assert len(moved) == processes
        assert all((mib > 0) == pages for mib in moved)
        losses.append(re.findall(LOSS, text))
    off, on = losses
    assert len(off) >= STEPS * processes
    assert sorted(on) == sorted(off)  # processes print in any order
    if name in notebooks.LIMITS:
        compare_with_the_notebook(name, [float(loss) for loss in on])


@pytest.mark.parametrize("name", PLANNED)
def test_a_plan_sees_the_steps_of_a_library(
    with_libraries: Device, tmp_path: Path, name: str
) -> None:
    if not with_libraries.simulated:
        pytest.skip("scripts are planned in virtual time")
    report = tmp_path / "report.json"
    done = with_libraries.run(
        *(RUNNER, "ideal", report, notebooks.FOLDER / f"{name}.py", "--steps", 12),
        kernels="timed",
        card="A100-SXM-40GB",
        capacity="1T",
    )
    assert done.status == 0, done.stderr
    found = json.loads(report.read_text())
    assert (found["status"], len(found["steps_ns"])) == ("ok", ITERATIONS)
    assert min(found["steps_ns"]) > 0
    assert found["contents"]["parameters"] > MIB // 4
    assert "paged in" not in done.stdout  # what the script prints at its end
