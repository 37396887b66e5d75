"""Turns of jobs by the device's clock: on the simulated device, in timed mode."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from harness import run_tests
from torch.cuda._lms_jobs import turns

jobs = torch.cuda.lms.jobs
turns._FEW_STEPS = 2


def multiplying(steps: int, products: int, note: Callable[[], None]) -> Iterator[None]:
    """Each step takes as long as so many products."""
    x = torch.ones(2048, 2048, device="cuda")
    for _ in range(steps):
        for _ in range(products):
            x @ x
        x.sum().item()  # as programs do that look at losses: the host is no further than the device
        note()
        yield


class TurnTest(unittest.TestCase):
    def order(self, schedule: Any, turn_seconds: float, **programs: dict[str, Any]) -> str:
        """Of the steps of the jobs."""
        pool = jobs.Pool(schedule=schedule, turn_seconds=turn_seconds, progress=False)
        order: list[str] = []
        for name, settings in programs.items():
            steps, products = settings.pop("program")
            pool.add(multiplying, steps, products, lambda name=name: order.append(name), **settings)
        self.jobs = pool.run()
        for job in self.jobs:
            job.result()
        return "".join(order)

    def step_seconds(self, products: int) -> float:
        """Of a job that is alone: what is measured is what it takes."""
        self.order(None, 1.0, a={"program": (8, products)})
        seconds = self.jobs[0].step_seconds
        assert seconds is not None
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in multiplying(8, products, lambda: None):
            pass
        end.record()
        end.synchronize()
        self.assertAlmostEqual(seconds, begin.elapsed_time(end) / 8000, delta=0.1 * seconds)
        return seconds

    def test_length(self) -> None:
        """As many steps as take the time of a turn, once a step's time is known."""
        seconds = self.step_seconds(20)
        order = self.order(
            jobs.RoundRobin(), 4 * seconds, a={"program": (12, 20)}, b={"program": (12, 40)}
        )
        # The first turns have two steps each.
        self.assertEqual(order[:4], "aabb")
        self.assertIn("bb" + 4 * "a" + "bb" + 4 * "a" + "b", order)

    def test_fair_share(self) -> None:
        """By time, not by steps, and in proportion to the weights."""
        seconds = self.step_seconds(20)
        order = self.order(
            jobs.FairShare(),
            seconds,
            a={"program": (60, 20), "weight": 1.0},
            b={"program": (60, 40), "weight": 3.0},
        )
        begin = order[: order.rindex("b") + 1]
        share = 2 * begin.count("b") / (2 * begin.count("b") + begin.count("a"))
        self.assertAlmostEqual(share, 0.75, delta=0.05)

    def test_longest_remaining(self) -> None:
        """All end at about the same time."""
        order = self.order(
            jobs.LongestRemaining(),
            1e-3,
            a={"program": (10, 20), "steps": 10},
            b={"program": (40, 20), "steps": 40},
            c={"program": (10, 80), "steps": 10},
        )
        ends = sorted(order.rindex(name) for name in "abc")
        self.assertGreater(ends[0], len(order) - 8, order)

    def test_who_only_watches_has_short_turns(self) -> None:
        order: list[str] = []

        def watching() -> Iterator[None]:
            while not trained.has_ended:
                order.append("w")
                yield

        pool = jobs.Pool(schedule=jobs.RoundRobin(), turn_seconds=10.0, progress=False)
        pool.add(watching)
        trained = pool.add(multiplying, 8, 20, lambda: order.append("t"))
        pool.run()
        self.assertEqual("".join(order), "wwttwwttttttww"[: len(order)])

    def test_one_job_after_the_other(self) -> None:
        """The device does not mix their work, whatever streams they use."""
        times: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

        def on_a_stream() -> Iterator[None]:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                x = torch.ones(2048, 2048, device="cuda")
                for _ in range(6):
                    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    begin.record()
                    for _ in range(20):
                        x @ x
                    end.record()
                    times.append((begin, end))
                    yield

        pool = jobs.Pool(schedule=jobs.RoundRobin(), turn_seconds=1e-3, progress=False)
        for _ in range(3):
            pool.add(on_a_stream)
        for job in pool.run():
            job.result()
        torch.cuda.synchronize()
        for (_, end), (begin, _) in pairwise(times):
            self.assertGreaterEqual(end.elapsed_time(begin), 0)


if __name__ == "__main__":
    run_tests()
