"""Activation checkpointing: a block's activations are computed again in backward."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from lms_bench.workloads.training import Training


def prepare(training: Training) -> None:
    """Recompute each block in the backward pass."""
    recompute(training.blocks)


def recompute(blocks: Iterable[nn.Module]) -> None:
    """Have what the blocks compute computed again in the backward pass."""
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
