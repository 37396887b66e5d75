"""Activation checkpointing: a block's activations are computed again in backward."""

from __future__ import annotations

from functools import partial

from torch.utils.checkpoint import checkpoint

from lms_bench.workloads.training import Training


def prepare(training: Training) -> None:
    """Recompute each block in the backward pass."""
    for block in training.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
