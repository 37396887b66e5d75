"""Activation checkpointing: a block's activations are computed again in backward."""

from __future__ import annotations

from functools import partial

from torch.utils.checkpoint import checkpoint
from workloads.training import Training


def prepare(training: Training) -> None:
    for block in training.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
