"""The switch with which convolutions give the same bits each time, so that LMS may repeat them."""

from __future__ import annotations

import torch

from lms_bench.workloads.training import Training


def prepare(training: Training) -> None:
    """Turn it on: simulated cards have no cuDNN, and take as long either way."""
    torch.backends.cudnn.deterministic = True
