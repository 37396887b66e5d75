"""Programs on torch.distributed give the same bits with LMS; see tests/programs/distributed.py."""

from __future__ import annotations

import ast
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


def scenarios() -> list[str]:
    """The names in its list of scenarios, without importing torch."""
    for node in ast.parse(PROGRAM.read_text()).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "SCENARIOS":
            assert isinstance(node.value, ast.Dict)
            return [ast.unparse(key) for key in node.value.keys if key]
    raise AssertionError(f"{PROGRAM} has no SCENARIOS")


@pytest.fixture(scope="module")
def rows(device: Device) -> Rows:
    if device.count < PROCESSES:
        pytest.skip(f"it takes {PROCESSES} devices")
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}")
    backend = "gloo" if device.simulated else "nccl"
    done = device.run(
        *launcher, PROGRAM, backend, devices=PROCESSES, kernels="async", capacity="1G"
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


@pytest.mark.parametrize("scenario", scenarios())
def test_the_same_bits(rows: Rows, scenario: str) -> None:
    for rank in range(PROCESSES):
        runs = rows[scenario, rank]
        assert list(runs) == ["off", "fits", "small", "chaos"], f"process {rank} ended early"
        measured = {mode: Measured(row["result"], row["memory"]) for mode, row in runs.items()}
        check_runs(measured, runs["small"]["limit"])
