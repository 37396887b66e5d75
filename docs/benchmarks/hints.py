"""What hints are worth, by program and hint.

Usage: ./scripts/lms run --device sim docs/benchmarks/hints.py

Runs on a simulated A100 with 40 GB, in virtual time: nothing is computed, and figures are the same
in every run. A program either serves requests with a model whose weights take 1.1 times the memory,
all requests of one size or of different sizes, or trains a workload of `lms bench`. Prints the mean
time of a request or an iteration, in ms, for each hint.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator

import children
import simcuda
import torch
from lms_bench import catalogue
from torch import nn

WIDTH, LAYERS = 8192, 44  # a GiB each
GIB = 1 << 30
PIECE = 2 << 20  # bytes: what a limit is a multiple of
CARD = "A100-SXM-40GB"
SETTLING, COUNTED = 18, 6  # requests or iterations


def keep(model: nn.Module) -> None:
    """As many parameters as take three quarters of the memory, the first ones."""
    room = torch.cuda.lms.get_limit_lms() * 3 // 4
    for parameter in model.parameters():
        room -= parameter.nbytes
        if room >= 0:
            torch.cuda.lms.hint(parameter, keep=True)


HINTS: dict[str, Callable[[nn.Module], object]] = {
    "none": lambda model: None,
    "keep": keep,
    "page": lambda model: torch.cuda.lms.hint(model, page=True),
    "layers": lambda model: torch.cuda.lms.LayerByLayer().apply(model),
    "again": lambda model: torch.cuda.lms.hint(model, recompute=True),
    "copied": lambda model: torch.cuda.lms.hint(model, recompute=False),
}


def serving(rows: Callable[[], int], hint: str) -> Iterator[None]:
    """Requests of so many rows."""
    with torch.device("cuda"), torch.no_grad():
        model = nn.Sequential(*(layer() for _ in range(LAYERS)))
        HINTS[hint](model)
        while True:
            model(torch.ones(rows(), WIDTH, dtype=torch.bfloat16))
            yield


def layer() -> nn.Module:
    """One of the served model's."""
    half = torch.bfloat16
    return nn.Sequential(
        nn.Linear(WIDTH, 4 * WIDTH, dtype=half), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH, dtype=half)
    )


def training(name: str, hint: str) -> Iterator[None]:
    """Iterations of a workload of `lms bench`."""
    workload = catalogue.named("workload", catalogue.WORKLOADS, name)
    training = workload.build(workload.batch, "cuda")
    HINTS[hint](training.model)
    while True:
        training.step()
        yield


# How it runs with a hint, and bytes of device memory in GiB.
PROGRAMS: dict[str, tuple[Callable[[str], Iterator[None]], float]] = {
    "requests alike": (lambda hint: serving(lambda: 64, hint), 40),
    "requests that differ": (lambda hint: serving(lambda: random.choice([32, 64, 128]), hint), 40),
    "BERT-large at 2": (lambda hint: training("bert-large", hint), 35.8 / 2),
    "GPT-2 XL at 2": (lambda hint: training("gpt2-xl", hint), 53.8 / 2),
    "ViT-L/16 at 3.7": (lambda hint: training("vit-l16", hint), 47.1 / 3.7),
}


def measure(program: str, hint: str) -> float:
    """Milliseconds, in this process."""
    random.seed(0)
    iterations = PROGRAMS[program][0](hint)
    for _ in range(SETTLING):
        next(iterations)
    began = ready()
    for _ in range(COUNTED):
        next(iterations)
    return (ready() - began) / COUNTED / 1e6


def ready() -> int:
    """When everything asked for until now will be done; makes nobody wait."""
    return max(simcuda.virtual_time(), simcuda.device_time())


def run(program: str, hint: str) -> float:
    """Milliseconds, in a process of its own."""
    capacity = int(PROGRAMS[program][1] * GIB) // PIECE * PIECE
    found = children.run(
        *(__file__, "--program", program, "--hint", hint),
        card=CARD,
        capacity=capacity,
        PYTORCH_LMS="1",
        PYTORCH_LMS_LIMIT=str(capacity),
        PYTORCH_LMS_HOST_LIMIT=str(512 * GIB),
    )
    return float(found)


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", choices=PROGRAMS, help="only this one, as JSON")
    parser.add_argument("--hint", choices=HINTS, default="none", help="for that one")
    arguments = parser.parse_args()
    if arguments.program:
        print(json.dumps(measure(arguments.program, arguments.hint)))
        return
    print(f"| ms | {' | '.join(HINTS)} |")
    print(f"|---|{'---:|' * len(HINTS)}")
    for program in PROGRAMS:
        figures = [f"{run(program, hint):,.0f}" for hint in HINTS]
        print(f"| {program} | {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    main()
