"""A training whose parameters, gradients and optimizer state are split over several devices."""

from __future__ import annotations

import torch
from torch.distributed.fsdp import OffloadPolicy, fully_shard

from lms_bench.workloads.training import Training


def shard(training: Training, offload: OffloadPolicy | None = None) -> None:
    """FSDP2 as its tutorial has it: each block is gathered when it runs, then the rest."""
    model, policy = training.model, offload or OffloadPolicy()
    learnt = _learnt(training)
    for module in (*training.blocks, model):
        fully_shard(module, offload_policy=policy)
    parts = dict(model.named_parameters())
    for group, names in zip(training.optimizer.param_groups, learnt, strict=True):
        group["params"] = [parts[name] for name in names]
    torch.cuda.empty_cache()  # of the parameters that were whole


def _learnt(training: Training) -> list[list[str]]:
    """The names of what the optimizer has, which has no state yet, by its groups."""
    names = {parameter: name for name, parameter in training.model.named_parameters()}
    return [
        [names[parameter] for parameter in group["params"]]
        for group in training.optimizer.param_groups
    ]
