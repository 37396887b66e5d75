"""Steps of the optimizer on the host, within the backward pass."""

from __future__ import annotations

import simcuda
import torch
from torch.cuda import _lms_host_step

from lms_bench.workloads.training import Training


def prepare(training: Training) -> None:
    """One call more than the program has. Its thread runs in virtual time, as all else."""
    _lms_host_step.ThreadPoolExecutor = simcuda.HostThread
    training.stepping = torch.cuda.lms.step_on_host(training.optimizer, even_if_slower=True)
