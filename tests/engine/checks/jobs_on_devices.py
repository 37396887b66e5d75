"""Jobs on two devices: their programs run one at a time, and they move from one to the other.

Usage: jobs_on_devices.py MODE [NAMES], see jobs.py.
"""

from __future__ import annotations

import functools
import gc
import logging
import random
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import job_programs as programs
import torch
from harness import run_tests
from jobs import Jobs, alone, counting, pool
from torch import Tensor
from torch.cuda._lms_jobs import moving
from torch.cuda._lms_jobs.job import Job
from torch.cuda._lms_library import engine

lms = torch.cuda.lms
PATIENCE = 20  # seconds until a test has failed


class Noted(logging.Handler):
    """What LMS tells the log, while it is open."""

    def __enter__(self) -> list[str]:
        self.found: list[str] = []
        logger = logging.getLogger("torch.cuda.lms")
        logger.addHandler(self)
        logger.setLevel(logging.INFO)
        return self.found

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())

    def __exit__(self, *_: object) -> None:
        logger = logging.getLogger("torch.cuda.lms")
        logger.removeHandler(self)
        logger.setLevel(logging.NOTSET)


class FloorTest(Jobs):
    """One program runs at a time."""

    def test_same_bits(self) -> None:
        calls = [
            (programs.generator, 1),
            (programs.with_switches, 2),
            (programs.function, 3),
            (programs.without_switches, 4),
            (programs.with_autocast, 5),
        ]
        expected = [alone(*call) for call in calls]
        shared = pool()
        found = [shared.add(*call) for call in calls]
        shared.run()
        self.assertEqual([job.result() for job in found], expected)
        self.assertEqual({job.device for job in found}, {0, 1})

    def test_random_numbers_without_seeds(self) -> None:
        """On either device those that the current device would have given."""
        expected = alone(programs.generator)
        shared = pool()
        found = [shared.add(programs.generator) for _ in range(2)]
        shared.run()
        self.assertEqual([job.result() for job in found], [expected] * 2)
        self.assertEqual([job.device for job in found], [0, 1])

    def test_others_run_while_one_waits(self) -> None:
        """A wait that the program asks for lasts until the other one has come a step further."""
        original, has_stepped = torch.cuda.synchronize, threading.Event()

        def patient(device: Any = None) -> None:
            if threading.current_thread().name == "waits":
                assert has_stepped.wait(PATIENCE), "nobody else ran"
            original(device)

        def waiting() -> Iterator[None]:
            torch.cuda.synchronize()
            yield

        def stepping() -> Iterator[None]:
            for _ in range(10):
                has_stepped.set()
                yield

        torch.cuda.synchronize = patient
        try:
            shared = pool()
            found = [shared.add(waiting, name="waits"), shared.add(stepping)]
            shared.run()
        finally:
            self.assertIs(torch.cuda.synchronize, patient)
            torch.cuda.synchronize = original
        for job in found:
            job.result()

    def test_casts_of_a_weight_that_is_used_twice(self) -> None:
        """Another job that leaves autocast between the uses makes no difference."""

        def program(seed: int) -> Generator[None, None, str]:
            torch.manual_seed(seed)
            weight = torch.randn(64, 64, device="cuda", requires_grad=True)
            for _ in range(6):
                with torch.autocast("cuda", torch.bfloat16):
                    x = torch.nn.functional.linear(torch.randn(8, 64, device="cuda"), weight)
                    x.sum().item()  # the other one goes on
                    x = torch.nn.functional.linear(x, weight)
                    x.sum().item()
                x.float().square().mean().backward()
                with torch.no_grad():
                    weight -= 0.01 * weight.grad
                yield
            return programs.digest(weight)

        expected = [alone(program, seed) for seed in (1, 2)]
        shared = pool()
        found = [shared.add(program, seed) for seed in (1, 2)]
        shared.run()
        self.assertEqual([job.result() for job in found], expected)

    def test_engine_tells_of_waits(self) -> None:
        begun: list[Job] = []
        original = Job._begin_wait

        def noting(job: Job) -> None:
            begun.append(job)
            original(job)

        def reading() -> Iterator[float]:
            x = torch.ones(1000, device="cuda", requires_grad=True)
            before = len(begun)
            x.sum().item()
            assert len(begun) > before, "item() is no wait"
            yield 0.0

        Job._begin_wait = noting
        try:
            shared = pool()
            found = [shared.add(reading), shared.add(reading)]
            shared.run()
            self.assertEqual(set(begun), set(found))
            for job in found:
                job.result()
            begun.clear()
            alone_on_one = pool(devices=1)
            alone_on_one.add(counting, 3, [], "a")
            alone_on_one.run()
            self.assertEqual(begun, [])
        finally:
            Job._begin_wait = original


class Busy:
    """A schedule, and a job that keeps the first device busy until all others have begun."""

    def __init__(self) -> None:
        self.shared = pool(schedule=self)
        self.busy = self.shared.add(self.work)
        self.others: list[Job] = []

    def add(self, program: Callable[..., Any], *args: Any, **settings: Any) -> Job:
        job = self.shared.add(self.hold, program, *args, **settings)
        self.others.append(job)
        return job

    def hold(self, program: Callable[..., Any], *args: Any) -> Any:
        """The program, which waits after two steps until it may have another device."""
        result = program(*args)
        return self.hold_generator(result) if isinstance(result, Generator) else result

    def hold_generator(self, result: Generator[Any, None, Any]) -> Generator[Any, None, Any]:
        count = 0
        while True:
            try:
                value = next(result)
            except StopIteration as end:
                return end.value
            yield value
            count += 1
            while count == 2 and not self.busy.has_ended:
                yield value

    def work(self) -> Iterator[None]:
        while not all(job.steps_done for job in self.others):
            yield

    def choose(self, waiting: Any) -> Job:
        has_begun = all(job.steps_done for job in self.others)
        if not has_begun and self.busy in waiting:
            return self.busy
        return min(waiting, key=lambda job: job.last_turn)

    def run(self) -> list[str]:
        """Returns why jobs have stayed where they were."""
        with Noted() as told:
            self.shared.run()
        self.busy.result()
        return [line for line in told if "stays" in line]


class MoveTest(Jobs):
    """A job goes to a device that has nothing to run."""

    def check(self, program: Callable[..., Any], *args: Any) -> None:
        expected = [alone(program, seed, *args) for seed in (1, 2)]
        busy = Busy()
        found = [busy.add(program, seed, *args) for seed in (1, 2)]
        self.assertEqual(busy.run(), [])
        self.assertEqual([job.result() for job in found], expected)
        self.assertEqual({job.device for job in found}, {0, 1}, "no job has moved")
        for job in found:
            job.latest = None

    def test_same_bits(self) -> None:
        self.check(programs.generator)

    def test_without_copies(self) -> None:
        """What has left a device goes to the next with the host's copy of it."""
        copied: list[int] = []

        class Watched:
            def __getattr__(self, name: str) -> Any:
                return getattr(engine(), name)

            def move_to_device(self, *args: Any) -> Tensor | None:
                moved = engine().move_to_device(*args)
                copied.append(moved is None)
                return moved

        moving.engine = Watched
        try:
            self.check(programs.generator)
        finally:
            moving.engine = engine
        self.assertTrue(copied and not any(copied), copied)

    def test_a_storage_that_others_have_is_copied(self) -> None:
        torch.cuda.set_enabled_lms(True)
        x = torch.arange(1000, device="cuda:0")
        other = x[10:]
        there = moving._moved_storage([x], 1)
        self.assertEqual(there.device, torch.device("cuda", 1))
        self.assertEqual(other.sum().item(), x[10:].cpu().sum().item())
        y = torch.arange(1000, device="cuda:0")
        moved = torch.empty(0, dtype=y.dtype, device="cuda:1").set_(
            moving._moved_storage([y], 1), 0, y.size(), y.stride()
        )
        with self.assertRaisesRegex(RuntimeError, "has moved a tensor's bytes elsewhere"):
            y.sum()
        self.assertTrue(torch.equal(moved.cpu(), torch.arange(1000)))

    def test_switches(self) -> None:
        self.check(programs.with_switches)

    def test_views_and_losses(self) -> None:
        """What shares a storage still does, and a graph that is spent is no obstacle."""

        def program(seed: int) -> Generator[Tensor, None, str]:
            torch.manual_seed(seed)
            model = programs.Model().cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            weight = model.layers[0].weight
            whole = torch.zeros(10, 20, device="cuda")
            part, other = whole[2:4, ::2], whole.t()
            for step in range(6):
                loss = model(torch.randn(8, programs.WIDTH, device="cuda")).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                part += step
                other[5] = loss.detach()
                yield loss
                assert part.device == whole.device == weight.device == model.layers[0].weight.device
                assert part._base is whole
                assert model.layers[0].weight is weight
            return programs.digest(whole, part, other, *model.parameters())

        self.check(program)

    def test_what_cannot_move(self) -> None:
        def graph() -> Iterator[Any]:
            x = torch.ones(1000, device="cuda", requires_grad=True)
            y = (x * x).sum()
            yield from range(4)
            y.backward()

        def stream() -> Iterator[Any]:
            with torch.cuda.stream(torch.cuda.Stream()):
                yield from range(4)

        def event() -> Iterator[Any]:
            event = torch.cuda.Event()
            yield from range(4)
            event.record()

        def named() -> Iterator[Any]:
            device = torch.device("cuda", torch.cuda.current_device())
            yield from range(4)
            torch.ones(1, device=device)

        def sparse() -> Iterator[Any]:
            matrix = torch.eye(3).to_sparse().cuda()
            yield from range(4)
            matrix.cpu()

        for reason, call in (
            ("call backward", (graph,)),
            ("stream", (stream,)),
            ("Event", (event,)),
            ("names cuda:1", (named,)),
            ("sparse", (sparse,)),
        ):
            busy = Busy()
            found = [busy.add(*call) for _ in range(2)]
            stays = busy.run()
            self.assertTrue(stays and all(reason in line for line in stays), (reason, stays))
            self.assertLessEqual(len(stays), 2)
            for job in found:
                job.result()

    def test_what_two_jobs_have_stays(self) -> None:
        whole = torch.ones(1000, device="cuda")
        shared = pool()
        other = shared.add(counting, 1, [], whole[10:])
        with self.assertRaisesRegex(moving._StaysError, f"shares a tensor with {other.name}"):
            moving._expect_own([whole], [other])
        moving._expect_own([torch.ones(1000, device="cuda")], [other])
        other.cancel()
        moving._expect_own([whole], [other])

    def test_may_not(self) -> None:
        busy = Busy()
        found = [busy.add(counting, 8, [], name, may_move=False) for name in "ab"]
        self.assertEqual(busy.run(), [])
        self.assertEqual([job.device for job in found], [1, 1])

    def test_functions_stay(self) -> None:
        busy = Busy()
        found = [busy.add(programs.function, seed) for seed in (1, 2)]
        self.assertEqual(busy.run(), [])
        self.assertEqual([job.device for job in found], [1, 1])


class SoakTest(Jobs):
    """Jobs that come, fail and are cancelled, on two devices."""

    JOBS = 20
    SEED = 1

    def test_soak(self) -> None:
        chosen = random.Random(self.SEED)
        shared = pool()
        survivors: list[tuple[Job, tuple[Any, ...]]] = []
        others: list[Job] = []

        def failing(seed: int, count: int) -> Iterator[Any]:
            for i, value in enumerate(programs.steps(seed)):
                if i == count:
                    raise ValueError("of this job")
                yield value

        def cancelling(seed: int, count: int) -> Iterator[Any]:
            """Others wait meanwhile; ends itself, or one of its kind."""
            paused = chosen.choice([job for job, _ in survivors])
            try:
                for i, value in enumerate(programs.steps(seed)):
                    (paused.pause if i < count else paused.resume)()
                    if i == count:
                        chosen.choice(others).cancel()
                    yield value
            finally:
                paused.resume()

        def coming() -> Iterator[None]:
            """Adds the jobs, a few at a time."""
            for number in range(self.JOBS):
                what = number % 6
                seed, count = chosen.randrange(5), chosen.randrange(1, 4)
                if what < 4:
                    program = chosen.choice(
                        [programs.generator, programs.function, programs.with_switches]
                    )
                    survivors.append((shared.add(program, seed), (program, seed)))
                else:
                    program = failing if what == 4 else cancelling
                    others.append(shared.add(program, seed, count))
                yield

        source = shared.add(coming)
        shared.run()
        source.result()
        self.assertEqual(len(shared.jobs), self.JOBS + 1)
        # For certain: three fail unless they are cancelled, and the three that cancel end one each.
        self.assertGreater(len({job.state for job in others}), 1)
        self.assertEqual(
            [job.result() for job, _ in survivors], [known(*call) for _, call in survivors]
        )
        for job in shared.jobs:
            job.latest = None


@functools.cache
def known(*call: Any) -> Any:
    return alone(*call)


if __name__ == "__main__":
    gc.freeze()
    run_tests()
