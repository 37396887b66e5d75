"""FSDP2's CPUOffloadPolicy: parts of parameters and the optimizer's steps are the host's."""

from __future__ import annotations

from torch.distributed.fsdp import CPUOffloadPolicy

from lms_bench.sharding import shard
from lms_bench.workloads.training import Training


def prepare(training: Training) -> None:
    """Shard so that each part comes to the device when it is gathered, and gradients leave it.

    The optimizer becomes a fused one, which is the fastest on the host.
    """
    shard(training, CPUOffloadPolicy())
    for group in training.optimizer.param_groups:
        group.update(fused=True, foreach=False)
