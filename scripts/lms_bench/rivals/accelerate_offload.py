"""accelerate's offload: a module's weights come to the device while its forward runs."""

from __future__ import annotations

from accelerate import cpu_offload

from lms_bench.workloads.training import Training


def prepare(training: Training) -> None:
    """Keep the weights on the host; each module fetches its own before it runs."""
    cpu_offload(training.model, execution_device="cuda")
