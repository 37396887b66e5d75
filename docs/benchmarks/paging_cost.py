"""What LMS adds to the host's work per operator while it pages, by number of storages.

Usage: ./scripts/lms run --device sim docs/benchmarks/paging_cost.py [--storages N ...] [--size B]

Operators go over N storages of equal size, one each, in rounds. Every case is a process of its own,
on the simulated device in timed mode: no data is computed, and the time that the simulation itself
takes is left out. Cases:
  off      without LMS
  fits     with LMS, and everything fits
  planned  60 % fits, the rounds are alike: LMS has learnt them, and copies ahead
  demand   60 % fits, each round has another order: LMS pages when an operator needs it
Prints, per operator: the mean, how much more that is than without LMS, the median and the 99th
percentile of 100 operators each, and how many storages were paged in (as many are paged out). Times
during which another program took the processor are left out.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import children
import simcuda
import torch

CASES = ("off", "fits", "planned", "demand")
SHARE_THAT_FITS = 0.6
CHUNK = 100  # operators that are timed together
LEARNING = 4  # rounds before the measured ones
LEAST_OPERATORS = 20_000  # to be measured
GIB = 1 << 30


@dataclass(frozen=True)
class Cost:
    """Host time of one case, the simulation's own left out."""

    mean: float  # microseconds per operator
    median: float  # of the chunks
    worst: float  # of the chunk at the 99th percentile
    moved: float  # storages paged in per operator


def measure(case: str, storages: int, size: int) -> Cost:
    """Run the case in this process."""
    gc.disable()  # Python's own pauses are not the engine's
    tensors = [torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(storages)]
    rounds = order(case, storages)
    for _ in range(LEARNING):
        for number in next(rounds):
            tensors[number].bitwise_not_()
    simcuda.meter_own_time(True)
    before = paged_in()
    operators = 0
    chunks: list[float] = []
    for _ in range(-(-LEAST_OPERATORS // storages)):
        numbers = next(rounds)
        for first in range(0, storages, CHUNK):
            chunk = [tensors[number] for number in numbers[first : first + CHUNK]]
            operators += len(chunk)
            if (took := time_of(chunk)) is not None:
                chunks.append(took / 1e3 / len(chunk))
    moved = (paged_in() - before) / size / operators
    mean, median = statistics.mean(chunks), statistics.median(chunks)
    return Cost(mean, median, statistics.quantiles(chunks, n=100)[-1], moved)


def time_of(chunk: list[torch.Tensor]) -> int | None:
    """Nanoseconds for one operator on each, the simulation's left out; None if interrupted."""
    own, interrupted = simcuda.own_time(), interruptions()
    start = time.perf_counter_ns()
    for tensor in chunk:
        tensor.bitwise_not_()
    took = time.perf_counter_ns() - start - (simcuda.own_time() - own)
    return took if interruptions() == interrupted else None


def interruptions() -> int:
    """How often another program has taken the processor from this thread."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def order(case: str, storages: int) -> Iterator[list[int]]:
    """The storages in the order of use, round after round."""
    numbers = list(range(storages))
    shuffle = random.Random(0).shuffle
    while True:
        if case == "demand":
            shuffle(numbers)
        yield numbers


def paged_in() -> int:
    """Bytes so far."""
    return int(torch.cuda.memory_stats().get("lms.page_in.bytes", 0))


def run(case: str, storages: int, size: int) -> Cost:
    """Run the case in a process of its own."""
    share = SHARE_THAT_FITS if case in ("planned", "demand") else 2.0
    found = children.run(
        *(__file__, "--case", case, "--storages", str(storages), "--size", str(size)),
        card="H200-141GB",
        capacity=int(share * storages * size) + GIB // 4,
        PYTORCH_LMS="0" if case == "off" else "1",
        PYTORCH_LMS_HOST_LIMIT=str(storages * size + GIB),
    )
    return Cost(**found)


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--storages", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--size", type=int, default=2 << 20, help="of a storage, bytes")
    parser.add_argument("--case", choices=CASES, help="only this one, as JSON")
    arguments = parser.parse_args()
    if arguments.case:
        cost = measure(arguments.case, arguments.storages[0], arguments.size)
        print(json.dumps(asdict(cost)))
        return
    titles = ("us", "more", "median", "99 %")
    print(f"{'storages':>8} {'case':<8}", *(f"{title:>7}" for title in titles), "paged in")
    for storages in arguments.storages:
        off = None
        for case in CASES:
            cost = run(case, storages, arguments.size)
            off = off or cost
            print(
                f"{storages:>8} {case:<8} {cost.mean:>7.2f} {cost.mean - off.mean:>7.2f} "
                f"{cost.median:>7.2f} {cost.worst:>7.2f} {cost.moved:>8.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
