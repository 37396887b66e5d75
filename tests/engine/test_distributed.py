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
# gloo copies through the host. What is above the collectives is the same as with NCCL.
ON_GLOO = ("collectives", "plain", "sharded_weights")
CASES = [
    pytest.param(
        backend,
        name,
        marks=pytest.mark.compatibility("Several GPUs", SCENARIOS[name], "works"),
        id=f"{backend}-{name}",
    )
    for backend, names in (("gloo", ON_GLOO), ("nccl", tuple(SCENARIOS)))
    for name in names
]


@pytest.fixture(scope="module")
def rows(device: Device, request: pytest.FixtureRequest) -> torchrun.Rows:
    """All scenarios of a backend of torch.distributed, run once."""
    return torchrun.run(device, request.param, *(ON_GLOO if request.param == "gloo" else ()))


@pytest.mark.parametrize(("rows", "scenario"), CASES, indirect=["rows"])
def test_the_same_bits(rows: torchrun.Rows, scenario: str) -> None:
    torchrun.check(rows, scenario)
