"""Programs on torch.distributed give the same bits with LMS; see tests/programs/distributed.py."""

from __future__ import annotations

from collections.abc import Iterable

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


def cases(names: Iterable[str]) -> list[object]:
    """For `pytest.mark.parametrize`; each has its line in docs/compatibility.md."""
    return [
        pytest.param(
            name, marks=pytest.mark.compatibility("Several GPUs", SCENARIOS[name], "works")
        )
        for name in names
    ]


@pytest.fixture(scope="module")
def on_gloo(device: Device) -> torchrun.Rows:
    """What the scenarios gave, run once."""
    return torchrun.run(device, "gloo", *ON_GLOO)


@pytest.fixture(scope="module")
def on_nccl(device: Device) -> torchrun.Rows:
    """What all scenarios gave, run once."""
    return torchrun.run(device, "nccl")


@pytest.mark.parametrize("scenario", cases(ON_GLOO))
def test_the_same_bits_on_gloo(on_gloo: torchrun.Rows, scenario: str) -> None:
    torchrun.check(on_gloo, scenario)


@pytest.mark.parametrize("scenario", cases(SCENARIOS))
def test_the_same_bits_on_nccl(on_nccl: torchrun.Rows, scenario: str) -> None:
    torchrun.check(on_nccl, scenario)
