"""Steps of the optimizer within the backward pass, one parameter at a time."""

from __future__ import annotations

import torch

from lms_bench.workloads.training import Training


def prepare(training: Training) -> None:
    """One call more than the program has."""
    training.stepping = torch.cuda.lms.step_in_backward(training.optimizer)
