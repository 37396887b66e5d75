"""accelerate's offload: a module's weights come to the device while its forward runs."""

from __future__ import annotations

from accelerate import cpu_offload
from workloads.training import Training


def prepare(training: Training) -> None:
    cpu_offload(training.model, execution_device="cuda")
