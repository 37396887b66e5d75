"""What it costs that a program's sequence of operators changes.

Usage: ./scripts/lms run --device sim docs/benchmarks/changing_sequence.py [--ratio R ...]

Trains an encoder of 24 layers on a simulated A100 with 40 GB, in virtual time: nothing is computed,
and figures are the same in every run. A case is a way in which iterations differ. Each runs without
LMS on a device that never fills, and with 1 / ratio of the memory that this takes: with LMS, and
with LMS as it first was (`policy:original`), which learns nothing. Prints the mean time of the last
eight of 26 iterations as a share of the first's speed, and the bytes that LMS copied in them.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import children
import simcuda
import torch
from torch import nn

WIDTH, HEADS, LAYERS, LENGTH, BATCH = 1024, 16, 24, 512, 32
ITERATIONS, COUNTED = 26, 8
DROPPED = 0.1  # of the layers
PIECE = 2 << 20  # bytes: what a limit is a multiple of
GIB = 1 << 30
CARD = "A100-SXM-40GB"


@dataclass(frozen=True)
class Outcome:
    """Of one case with one engine."""

    step_ns: float  # of virtual time, mean
    moved: float  # bytes copied each way, mean
    need: int  # most bytes that the allocator held


class Encoder:
    """What is trained, with its optimizer."""

    def __init__(self, layers: int) -> None:
        with torch.device("cuda"):
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.1, batch_first=True)
                for _ in range(layers)
            )
        self.optimizer = torch.optim.AdamW(self.layers.parameters(), fused=True)

    def loss(self, batch: int, dropped: float = 0, length: int = LENGTH) -> torch.Tensor:
        """Of a batch, with a part of the layers left out."""
        with torch.autocast("cuda", torch.bfloat16):
            x = torch.zeros(batch, length, WIDTH, device="cuda")
            for layer in self.layers:
                if random.random() >= dropped:
                    x = layer(x)
            return x.float().mean()

    def train(self, *batches: int, dropped: float = 0, length: int = LENGTH) -> None:
        """A step of the optimizer, after a backward pass of each batch."""
        for batch in batches:
            self.loss(batch, dropped, length).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def alike() -> Iterator[None]:
    """They do not differ."""
    encoder = Encoder(LAYERS)
    while True:
        encoder.train(BATCH)
        yield


def accumulation() -> Iterator[None]:
    """Two batches for each step of the optimizer."""
    encoder = Encoder(LAYERS)
    while True:
        encoder.train(BATCH, BATCH)
        yield


def two_models() -> Iterator[None]:
    """Two of half as many layers, trained in turn."""
    encoders = [Encoder(LAYERS // 2), Encoder(LAYERS // 2)]
    while True:
        for encoder in encoders:
            encoder.train(BATCH)
        yield


def evaluation() -> Iterator[None]:
    """After every fourth iteration, a forward pass without gradients."""
    encoder = Encoder(LAYERS)
    while True:
        for _ in range(4):
            encoder.train(BATCH)
            yield
        with torch.no_grad():
            encoder.loss(BATCH)


def tail() -> Iterator[None]:
    """Every fourth batch has half the size."""
    encoder = Encoder(LAYERS)
    while True:
        for batch in (BATCH, BATCH, BATCH, BATCH // 2):
            encoder.train(batch)
            yield


def layer_drop() -> Iterator[None]:
    """Each layer is left out with a chance of one in ten, in each iteration anew."""
    encoder = Encoder(LAYERS)
    while True:
        encoder.train(BATCH, dropped=DROPPED)
        yield


def lengths() -> Iterator[None]:
    """Sequences are of another length in each iteration, 384 to 512."""
    encoder = Encoder(LAYERS)
    while True:
        encoder.train(BATCH, length=random.randrange(384, LENGTH + 1, 8))
        yield


CASES: dict[str, Callable[[], Iterator[None]]] = {
    "alike": alike,
    "accumulation": accumulation,
    "two models": two_models,
    "evaluation": evaluation,
    "tail": tail,
    "layer drop": layer_drop,
    "lengths": lengths,
}


def measure(case: str) -> Outcome:
    """Run the case in this process."""
    random.seed(0)
    iterations = CASES[case]()
    for _ in range(ITERATIONS - COUNTED):
        next(iterations)
    began, copied = ready(), traffic()
    for _ in range(COUNTED):
        next(iterations)
    moved = (traffic() - copied) / 2 / COUNTED
    return Outcome((ready() - began) / COUNTED, moved, torch.cuda.max_memory_reserved())


def ready() -> int:
    """When everything asked for until now will be done; makes nobody wait."""
    return max(simcuda.virtual_time(), simcuda.device_time())


def traffic() -> int:
    """Bytes copied to the device and from it."""
    stats = simcuda.stats()
    return int(stats.host_to_device_bytes + stats.device_to_host_bytes)


def run(case: str, capacity: int, **variables: str) -> Outcome:
    """Run the case in a process of its own."""
    found = children.run(
        *(__file__, "--case", case),
        card=CARD,
        capacity=capacity,
        PYTORCH_LMS_LIMIT=str(capacity),
        PYTORCH_LMS_HOST_LIMIT=str(512 * GIB),
        **variables,
    )
    return Outcome(**found)


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ratio", type=float, nargs="+", default=[1.5, 3.7])
    parser.add_argument("--case", choices=CASES, help="only this one, as JSON")
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(asdict(measure(arguments.case))))
        return
    print("| at | case | ideal, ms | LMS | original | LMS, GB each way | original |")
    print("|---:|---|---:|---:|---:|---:|---:|")
    ideals = {case: run(case, 1024 * GIB, PYTORCH_LMS="0") for case in CASES}
    for ratio in arguments.ratio:
        for case, ideal in ideals.items():
            capacity = int(ideal.need / ratio) // PIECE * PIECE
            lms = run(case, capacity, PYTORCH_LMS="1")
            original = run(case, capacity, PYTORCH_LMS="1", PYTORCH_LMS_CONF="policy:original")
            print(
                f"| {ratio:g} | {case} | {ideal.step_ns / 1e6:,.1f} "
                f"| {ideal.step_ns / lms.step_ns:.1%} | {ideal.step_ns / original.step_ns:.1%} "
                f"| {lms.moved / 1e9:.2f} | {original.moved / 1e9:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
