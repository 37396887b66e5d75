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
    "sharded_weights_stepping": "`fully_shard`, with steps within the backward pass",
    "sharded_weights_on_the_host": "`fully_shard` with `CPUOffloadPolicy`",
    "split_layers": "Tensor parallel, by columns and rows",
    "groups": "Groups of collectives, batches of sends and receives",
    "pipeline": "Pipeline parallel, one forward, one backward",
}
NCCL_ONLY = {"pipeline", "groups"}  # gloo has no groups and sends no CUDA tensors
CASES = [
    pytest.param(name, marks=pytest.mark.compatibility("Several GPUs", title, "works"))
    for name, title in SCENARIOS.items()
]


@pytest.fixture(scope="module", params=["gloo", "nccl"])
def backend(request: pytest.FixtureRequest) -> str:
    """Of torch.distributed."""
    return request.param


@pytest.fixture(scope="module")
def rows(device: Device, backend: str) -> torchrun.Rows:
    """All scenarios, run once for each backend."""
    return torchrun.run(device, backend)


@pytest.mark.parametrize("scenario", CASES)
def test_the_same_bits(backend: str, rows: torchrun.Rows, scenario: str) -> None:
    if backend == "gloo" and scenario in NCCL_ONLY:
        pytest.skip("gloo has no groups and sends no CUDA tensors")
    torchrun.check(rows, scenario)
