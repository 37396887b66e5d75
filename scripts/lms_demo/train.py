"""The demonstration's training program: trains a model and writes down what was seen.

    PYTHONPATH=scripts python scripts/lms_demo/train.py
        --model gpt|resnet --mode off|on|unlimited --steps N --json OUT.json

With --limit, or PYTORCH_LMS_LIMIT, the modes "off" and "on" keep to so many bytes of device memory;
it is for real GPUs, a simulated device is as small as one likes. Running out of memory is a result
like any other: the exit status is 0 and the report says so.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lms_demo.models import TASKS
from lms_demo.training import compute_loss, digest, make_deterministic, make_optimizer

SEED = 1
MAX_POINTS = 2000  # of the timeline
OPTIMIZERS = {"gpt": "adamw_fused", "resnet": "sgd"}


@dataclass
class Report:
    """What is written as JSON. Sizes are in bytes."""

    status: str = "ok"  # or "oom"
    error: str = ""  # the first lines of the out-of-memory error
    steps: int = 0  # finished
    losses: list[float] = field(default_factory=list)  # one per step
    weights_sha256: str = ""
    needed_bytes: int = 0  # the most that tensors took at once; in mode "unlimited" only
    peak_device_bytes: int = 0  # the most that the caching allocator reserved
    paged_in_bytes: int = 0
    paged_out_bytes: int = 0
    host_peak_bytes: int = 0  # the most that paged-out storages took on the host
    # Number of the operator in the last step, bytes of tensors on the device, on the host only.
    timeline: list[list[int]] = field(default_factory=list)


class Timeline(TorchDispatchMode):
    """Samples memory after every operator."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[list[int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        device = torch.cuda.memory_allocated()
        self.points.append([len(self.points), device, lms_stats().get(PAGED_OUT_NOW, 0)])
        return result

    def thinned(self) -> list[list[int]]:
        """At most MAX_POINTS of them, evenly spread."""
        every = -(-len(self.points) // MAX_POINTS) or 1
        return self.points[::every]


PAGED_OUT_NOW = "lms.paged_out_bytes.current"


def lms_stats() -> dict[str, int]:
    """Statistics of LMS, none where it is off."""
    return torch.cuda.lms.stats() if torch.cuda.get_enabled_lms() else {}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", choices=sorted(TASKS), required=True)
    parser.add_argument("--mode", choices=("off", "on", "unlimited"), required=True)
    parser.add_argument("--steps", type=int, required=True, help="how many to train")
    parser.add_argument("--json", type=Path, required=True, help="the report")
    parser.add_argument("--limit", type=int, help="bytes of device memory (default: all there is)")
    arguments = parser.parse_args()
    limit = arguments.limit or int(os.environ.get("PYTORCH_LMS_LIMIT") or 0)
    make_deterministic()
    prepare(arguments.mode, limit)
    report = Report()
    try:
        train(arguments.model, arguments.steps, report)
    except torch.cuda.OutOfMemoryError as error:
        report.status = "oom"
        report.error = "\n".join(str(error).splitlines()[:4])
        print(f"out of memory after {report.steps} steps", file=sys.stderr)
    add_memory(report, arguments.mode)
    arguments.json.write_text(json.dumps(asdict(report)), encoding="utf-8")
    return 0


def prepare(mode: str, limit: int) -> None:
    """Switches LMS on or off and sets how much device memory may be used; 0: all of it."""
    torch.cuda.set_enabled_lms(mode == "on")
    if mode == "on" and limit:
        torch.cuda.set_limit_lms(limit)
    if mode == "off" and limit:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(limit / total)


def train(name: str, steps: int, report: Report) -> None:
    """Trains, adding to the report; what is there stays there when memory runs out."""
    task = TASKS[name]
    torch.manual_seed(SEED)
    model = task.model().cuda()
    optimizer = make_optimizer(OPTIMIZERS[name], model.parameters())
    generator = torch.Generator().manual_seed(SEED)

    def step() -> float:
        loss = compute_loss(model, task, generator)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    for number in range(1, steps + 1):
        report.losses.append(step() if number < steps else sampled(step, report))
        report.steps = number
        print(f"{name}: step {number} of {steps}, loss {report.losses[-1]:.6f}", file=sys.stderr)
    report.weights_sha256 = digest(model.state_dict())


def sampled(step: Callable[[], float], report: Report) -> float:
    """One step, with the timeline of its memory."""
    with Timeline() as timeline:
        loss = step()
    report.timeline = timeline.thinned()
    return loss


def add_memory(report: Report, mode: str) -> None:
    """Adds peaks and traffic."""
    if mode == "unlimited":
        report.needed_bytes = torch.cuda.max_memory_allocated()
    report.peak_device_bytes = torch.cuda.max_memory_reserved()
    stats = lms_stats()
    report.paged_in_bytes = stats.get("lms.page_in.bytes", 0)
    report.paged_out_bytes = stats.get("lms.page_out.bytes", 0)
    report.host_peak_bytes = stats.get("lms.host_bytes.peak", 0)


if __name__ == "__main__":
    sys.exit(main())
