"""What it costs that two processes use a card in turn, each of which fills nine tenths of it.

    ./scripts/lms run --device sim docs/benchmarks/two_processes.py

Two processes of 24 tensors each, on one simulated card of 640 MiB whose copies take real time. They
use all their tensors in turn, and are at rest in between. A turn is compared with the plain copies
that it takes: what the other has goes out, what this one had comes in. These are made and timed by
a third process with a card of its own, without LMS.

The numbers: seconds of the two copies together; for each turn after the first of both, its
seconds, and these over the seconds of the copies.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import simcuda
import torch

MIB = 1 << 20
CARD, COUNT, TENSOR = 640 * MIB, 24, 24 * MIB  # 0.9 of the card
BANDWIDTH = 256 * MIB  # bytes per second each way
TURNS, REST = 6, 1.0  # seconds


def tensors() -> list[torch.Tensor]:
    """What a process uses."""
    return [torch.full((TENSOR // 4,), 1.0, device="cuda") for _ in range(COUNT)]


def copies() -> None:
    """Prints how long it takes to copy as much to page-locked memory and back."""
    there = tensors()
    here = [torch.empty_like(tensor, device="cpu", pin_memory=True) for tensor in there]
    torch.cuda.synchronize()
    begin = time.monotonic()
    for host, device in zip(here, there, strict=True):
        host.copy_(device, non_blocking=True)
    torch.cuda.synchronize()
    for host, device in zip(here, there, strict=True):
        device.copy_(host, non_blocking=True)
    torch.cuda.synchronize()
    print(json.dumps(time.monotonic() - begin))


def use() -> None:
    """For each line that comes uses all its tensors, and prints how long that took."""
    mine: list[torch.Tensor] = []
    for _ in sys.stdin:
        begin = time.monotonic()
        mine = mine or tensors()
        for tensor in mine:
            tensor.add_(1)
        torch.cuda.synchronize()
        print(json.dumps(time.monotonic() - begin), flush=True)


def start(what: str, folder: Path, **variables: str) -> subprocess.Popen[str]:
    """A process of this file."""
    card: dict[str, Any] = {"capacity": CARD, "kernels": "async", "copy_bandwidth": BANDWIDTH}
    build = Path(os.environ["SIMCUDA_OPS_LIBRARY"]).parent.parent
    environment = simcuda.environment(build, shared=folder / what, poison=0, **card) | variables
    return subprocess.Popen(
        [sys.executable, __file__, what],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def turn(process: subprocess.Popen[str]) -> float:
    """Has it use its tensors; returns the seconds that this took, after a rest."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    seconds: float = json.loads(process.stdout.readline())
    time.sleep(REST)
    return seconds


def main() -> None:
    """Command line."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = json.loads(start("copies", folder, PYTORCH_LMS="0").communicate()[0])
        print(f"copies out and in: {plain:.2f} s")
        variables = {"PYTORCH_LMS": "1", "PYTORCH_LMS_HOST_LEDGER": str(folder / "ledger")}
        both = [start("use", folder, **variables) for _ in range(2)]
        for process in both:  # the first turn, in which host memory is page-locked
            turn(process)
        for number in range(TURNS):
            seconds = turn(both[number % 2])
            print(f"turn {number + 3}: {seconds:.2f} s, {seconds / plain:.2f} of the copies")
        for process in both:
            process.communicate()


if __name__ == "__main__":
    {"copies": copies, "use": use}.get(sys.argv[-1], main)()
