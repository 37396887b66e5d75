"""What it takes the host to give another job the device: see jobs.md.

./scripts/lms run docs/benchmarks/turn_cost.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import torch

jobs = torch.cuda.lms.jobs
MODEL = 64  # parameters of each job


def work(steps: int, times: list[float]) -> Iterator[None]:
    """Notes when each step ends and the next begins; between is the turn of the other job."""
    model = [torch.ones(16, device="cuda") for _ in range(MODEL)]
    for _ in range(steps):
        times.append(time.perf_counter())
        model[0].add_(1)
        times.append(time.perf_counter())
        yield


def seconds(count: int, steps: int) -> float:
    """From the end of a step to the beginning of the next one, with so many jobs; the median."""
    times: list[float] = []
    pool = jobs.Pool(1, schedule=jobs.RoundRobin(), turn_seconds=1e-9, progress=False)
    for _ in range(count):
        pool.add(work, steps, times)
    pool.run()
    gaps = sorted(
        begin - end for end, begin in zip(times[1::2], times[2::2], strict=False) if begin > end
    )
    return gaps[len(gaps) // 2]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500, help="of each job")
    steps = parser.parse_args().steps
    torch.cuda.set_enabled_lms(True)
    # Every step is a turn, also of what takes next to no time.
    from torch.cuda._lms_jobs import turns

    turns._SHORTEST = 0.0
    alone, together = seconds(1, steps), seconds(2, steps)
    print(f"a job alone, from step to step: {1e3 * alone:.3f} ms")
    print(f"two jobs, from one to the other: {1e3 * together:.3f} ms")


if __name__ == "__main__":
    main()
