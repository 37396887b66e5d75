"""Jobs that torchrun and Ray start share a card through LMS: the bits of each alone."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from lms_cli.site import notebooks
from support import leftovers
from support.device import PROGRAMS, Device

JOB = PROGRAMS / "torchrun_job.py"
# Of a card. What one process has after its training, 72 MiB, and what another needs in its own,
# 96 MiB, do not fit, whichever is the first to end.
JOB_CAPACITY = "160M"
RATES = 4  # trials of the example
STEPS = 4
TRIALS_CAPACITY = "64M"  # of a card, three quarters of what one trial takes
ENDING = 20  # seconds that a cluster has to be gone
LOSSES = f"""
import json, ray_tune
every = {{"layers": 8, "width": 512, "batch_size": 1024, "steps": {STEPS}}}
print(json.dumps([[rate, list(ray_tune.losses(rate, **every))] for rate in ray_tune.RATES]))
"""


@pytest.fixture
def shared(device: Device, tmp_path: Path) -> dict[str, Any]:
    """Settings of programs with LMS that know of each other, on cards that they share."""
    if not device.simulated:
        pytest.skip("only simulated cards are shared for certain")
    ledger = {"PYTORCH_LMS_HOST_LEDGER": str(tmp_path / "ledger")}
    return {"shared": tmp_path / "card", "env": ledger}


def run_job(
    device: Device, processes: int, meet: Path, count: int, **settings: Any
) -> list[dict[str, Any]]:
    """What the processes of a job print, by rank; it meets others through the file `meet`."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}")
    done = device.run(*torchrun, JOB, meet, count, **settings)
    assert done.status == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(rows, key=lambda row: int(row["rank"]))


@pytest.mark.compatibility(
    "Threads and processes",
    "`torchrun`: jobs, and processes of a job, on one card",
    "works",
)
@pytest.mark.parametrize(("jobs", "processes"), [(2, 1), (1, 2)])
def test_torchrun(
    device: Device, shared: dict[str, Any], tmp_path: Path, jobs: int, processes: int
) -> None:
    """Two jobs that know nothing of each other; two processes of one job, on the same card."""
    rows = run_job(device, processes, tmp_path / "alone", processes, capacity="1G")
    alone = [row["result"] for row in rows]
    settings = shared | {"capacity": JOB_CAPACITY, "kernels": "async"}
    settings["env"] |= {"PYTORCH_LMS": "1"}
    with ThreadPoolExecutor() as pool:
        arguments = (device, processes, tmp_path / "together", jobs * processes)
        started = [pool.submit(run_job, *arguments, **settings) for _ in range(jobs)]
        finished = [job.result() for job in started]
    for rows in finished:
        assert [row["result"] for row in rows] == alone
    assert any(row["paged_out"] > 0 for rows in finished for row in rows)


@pytest.fixture
def ray_environment(shared: dict[str, Any], tmp_path: Path) -> Iterator[dict[str, str]]:
    """Variables for a cluster of its own, which ends and leaves nothing."""
    # The names of its sockets are too long in a longer folder.
    folder = tempfile.TemporaryDirectory(prefix="ray", dir="/tmp")
    with folder as name, leftovers.none_left(ENDING):
        yield {
            **shared["env"],
            "HOME": str(tmp_path),
            "RAY_ADDRESS": "local",
            "RAY_AUTH_MODE": "disabled",
            "RAY_TMPDIR": name,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # at 15 a trial waits for all other work
        }


def reported(folder: Path) -> dict[float, list[dict[str, Any]]]:
    """What each trial has told Ray, by its learning rate."""
    found = {}
    for path in folder.glob("*/trial_*/result.json"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        found[rows[0]["config"]["rate"]] = rows
    return found


@pytest.mark.compatibility("Libraries", "Ray Tune: several trials on a GPU", "works")
def test_ray_tune(
    with_libraries: Device,
    shared: dict[str, Any],
    ray_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    """Two trials on each of two cards, of which one is enough to fill a card."""
    example = notebooks.FOLDER / "ray_tune.py"
    options = ("--gpus", 2, "--steps", STEPS, "--folder", tmp_path / "results")
    done = with_libraries.run(
        *(example, *options),
        **shared | {"env": ray_environment},
        capacity=TRIALS_CAPACITY,
        devices=2,
    )
    assert done.status == 0, done.stderr + done.stdout
    assert done.stdout.count(" MiB\n") == RATES and "best: " in done.stdout
    import_example = f"import sys; sys.path.insert(0, {str(notebooks.FOLDER)!r})\n"
    alone = dict(with_libraries.json("-c", import_example + LOSSES, capacity="2G"))
    trials = reported(tmp_path / "results")
    assert trials.keys() == alone.keys()
    for rate, rows in trials.items():
        losses = [row["loss"] for row in rows]
        assert losses == alone[rate][: len(losses)]
        assert rows[-1]["paged in MiB"] > 0
    assert max(len(rows) for rows in trials.values()) == STEPS
    cards = list(tmp_path.glob("ledger.card-*"))
    assert len(cards) == 2, "a trial sees the card that Ray gives it"
