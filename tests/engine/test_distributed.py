"""Programs on torch.distributed give the same bits with LMS; see tests/programs/distributed.py."""

from __future__ import annotations

import pytest
from support import torchrun
from support.device import Device

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
def rows(request: pytest.FixtureRequest, device: Device) -> torchrun.Rows:
    """All scenarios, on one of the backends."""
    return torchrun.run(device, request.param)


@pytest.mark.parametrize(("rows", "scenario"), CASES, indirect=["rows"], scope="module")
def test_the_same_bits(rows: torchrun.Rows, scenario: str) -> None:
    torchrun.check(rows, scenario)
