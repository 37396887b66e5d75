"""Running tests/programs/distributed.py, and the one check of it."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest

from support.child import failure
from support.device import PROGRAMS, Device
from support.programs import Measured, check_runs

PROGRAM = PROGRAMS / "distributed.py"
PROCESSES = 2
Rows = dict[tuple[str, int], dict[str, dict[str, Any]]]  # by scenario and rank, then by mode


def launcher(device: Device) -> tuple[str, ...]:
    """Of a program, a process per device; skips the test where there are too few."""
    if device.count < PROCESSES:
        pytest.skip(f"it takes {PROCESSES} devices")
    return ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}")


def run(device: Device, backend: str, *scenarios: str) -> Rows:
    """Runs all scenarios or the given ones; skips the test where they cannot run."""
    torchrun = launcher(device)
    if backend == "gloo" and not device.simulated:
        pytest.skip("gloo's collectives go through the host: NCCL is there")
    done = device.run(
        *torchrun, PROGRAM, backend, *scenarios, devices=PROCESSES, kernels="async", capacity="1G"
    )
    found: Rows = defaultdict(dict)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            found[row["scenario"], row["rank"]][row["mode"]] = row
    if done.status != 0:
        first = [line for line in done.stderr.splitlines() if line.startswith("[rank0]")]
        written = "\n".join(first) or done.stderr  # torchrun adds how it was told
        raise failure(done.command, f"ended with exit status {done.status}", written)
    return found


def check(rows: Rows, scenario: str) -> None:
    """Asserts that every process had the same bits in all modes."""
    for rank in range(PROCESSES):
        runs = rows[scenario, rank]
        assert list(runs) == ["off", "fits", "small", "chaos"], f"process {rank} ended early"
        measured = {mode: Measured(row["result"], row["memory"]) for mode, row in runs.items()}
        check_runs(measured, runs["small"]["limit"])
