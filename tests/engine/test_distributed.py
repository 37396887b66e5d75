"""Programs on torch.distributed give the same bits with LMS; see tests/programs/distributed.py."""

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


SCENARIOS = {
    "collectives": "Collectives, one by one",
    "plain": "`DistributedDataParallel`",
    "bucket_view": "`DistributedDataParallel`, gradients as views of buckets",
    "static_graph": "`DistributedDataParallel`, static graph",
    "unused_parameters": "`DistributedDataParallel`, parameters that are not used",
    "compressed_gradients": "`DistributedDataParallel`, communication hooks",
    "accumulated": "`DistributedDataParallel`, gradients accumulated with `no_sync`",
    "sharded_optimizer": "`ZeroRedundancyOptimizer`, at three times the device's memory",
    "sharded_weights": "`fully_shard` (FSDP2)",
    "sharded_weights_on_the_host": "`fully_shard` with `CPUOffloadPolicy`",
    "split_layers": "Tensor parallel, by columns and rows",
    "groups": "Groups of collectives, batches of sends and receives",
    "pipeline": "Pipeline parallel, one forward, one backward",
}
NCCL_ONLY = {"pipeline", "groups"}  # gloo has no groups and sends no CUDA tensors
CASES = [
    pytest.param(backend, name, marks=pytest.mark.compatibility("Several GPUs", title, "works"))
    for backend in ("gloo", "nccl")
    for name, title in SCENARIOS.items()
    if backend == "nccl" or name not in NCCL_ONLY
]


@pytest.fixture(scope="module")
def backend(request: pytest.FixtureRequest, device: Device) -> str:
    if device.count < PROCESSES:
        pytest.skip(f"it takes {PROCESSES} devices")
    name: str = request.param
    if name == "gloo" and not device.simulated:
        pytest.skip("gloo's collectives go through the host: NCCL is there")
    return name


@pytest.fixture(scope="module")
def rows(device: Device, backend: str) -> Rows:
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}")
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


@pytest.mark.parametrize(("backend", "scenario"), CASES, indirect=["backend"], scope="module")
def test_the_same_bits(rows: Rows, scenario: str) -> None:
    for rank in range(PROCESSES):
        runs = rows[scenario, rank]
        assert list(runs) == ["off", "fits", "small", "chaos"], f"process {rank} ended early"
        measured = {mode: Measured(row["result"], row["memory"]) for mode, row in runs.items()}
        check_runs(measured, runs["small"]["limit"])
