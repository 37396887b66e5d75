"""PyTorch's own saved-tensor hooks: what backward needs waits on the host."""

from __future__ import annotations

from torch.autograd.graph import save_on_cpu

from lms_bench.workloads.training import Training


def prepare(training: Training) -> None:
    """Copy what the forward pass saves to page-locked host memory."""
    training.around_forward = lambda: save_on_cpu(pin_memory=True)
