"""Jobs that take turns on one device: their results are those that each has alone.

Usage: jobs.py MODE [NAMES]. MODE is fits, small (two models do not fit together) or chaos.
"""

from __future__ import annotations

import _thread
import gc
import io
import random
import signal
import sys
import threading
import time
import unittest
from collections.abc import Callable, Generator, Iterator
from typing import Any

import harness
import job_programs as programs
import torch
from harness import raises, run_tests
from torch import Tensor
from torch.cuda._lms_jobs import table, turns
from torch.cuda._lms_jobs.belongings import Belongings

lms = torch.cuda.lms
MIB = 1 << 20
LIMIT = 8 * MIB
BIG = 1 << 18  # elements: 1 MiB
SHORT = 1e-6  # seconds: turns of one step
MODE = sys.argv.pop(1)
torch.cuda.init()
turns._SHORTEST = 0.0  # steps that do next to nothing count here
turns._FEW_STEPS = 2


def pool(**settings: Any) -> Any:
    """With short turns, one job after the other."""
    jobs = lms.jobs
    return jobs.Pool(
        **{"turn_seconds": SHORT, "schedule": jobs.RoundRobin(), "progress": False} | settings
    )


def alone(program: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a program returns in a thread of its own, as the process is now; which stays so."""
    before = Belongings()
    results: list[Any] = []
    torch.cuda.set_enabled_lms(False)
    harness.in_thread(lambda: results.append(programs.to_its_end(program, *args, **kwargs)))
    before.apply()
    return results[0]


def counting(steps: int, order: list[str], name: str) -> Generator[int, None, None]:
    """Does next to nothing, and notes its steps."""
    for step in range(steps):
        torch.ones(10, device="cuda").sum().item()  # its time is known when it ends
        order.append(name)
        yield step


def allocated() -> list[int]:
    """Bytes of tensors of each device, there and on the host."""
    gc.collect()
    torch.cuda.empty_cache()  # also ends what is being paged out, which would count twice
    stats = [torch.cuda.memory_stats(device) for device in range(torch.cuda.device_count())]
    return [
        one.get("requested_bytes.all.current", 0) + one.get("lms.paged_out_bytes.current", 0)
        for one in stats
    ]


class Jobs(unittest.TestCase):
    def setUp(self) -> None:
        torch.manual_seed(5)
        torch.cuda.set_limit_lms(LIMIT if MODE == "small" else 0)
        # A pool turns LMS on.
        torch.ops.lms.set_chaos(MODE == "chaos")
        self.left = allocated()

    def tearDown(self) -> None:
        self.assertEqual(allocated(), self.left, "tensors of jobs are left")
        torch.cuda.set_enabled_lms(False)
        torch.ops.lms.set_chaos(False)


class ResultTest(Jobs):
    """The same bits as alone."""

    def check(self, *calls: tuple[Any, ...]) -> list[Any]:
        expected = [alone(*call) for call in calls]
        shared = pool()
        found = [shared.add(*call) for call in calls]
        shared.run()
        self.assertTrue(torch.cuda.get_enabled_lms())
        self.assertEqual([job.result() for job in found], expected)
        return found

    def test_generators_and_functions(self) -> None:
        found = self.check((programs.generator, 1), (programs.generator, 2), (programs.function, 3))
        self.assertEqual([job.steps_done for job in found], [programs.STEPS + 1] * 3)
        if MODE == "small":
            self.assertGreater(sum(job.paged_in for job in found), 4 * MIB)
            self.assertGreater(sum(job.paged_out for job in found), 4 * MIB)

    def test_random_numbers_as_the_process_has_them(self) -> None:
        """Without seeds of their own all begin with the same."""
        first, second, _ = self.check(
            (programs.generator,), (programs.generator,), (programs.generator, 9)
        )
        self.assertEqual(first.result(), second.result())

    def test_numpy(self) -> None:
        if programs.numpy is None:
            self.skipTest("without NumPy")
        programs.numpy.random.seed(3)
        self.check((programs.generator,), (programs.function,))

    def test_switches(self) -> None:
        self.check(
            (programs.with_switches, 1),
            (programs.without_switches, 1),
            (programs.with_autocast, 2),
            (programs.without_switches, 2),
        )

    def test_new_switches(self) -> None:
        self.check(
            (programs.with_new_switches, 1),
            (programs.without_switches, 1),
            (programs.with_switches, 1),
        )

    def test_streams(self) -> None:
        self.check(
            (lambda: programs.generator(1, stream=True),),
            (lambda: programs.function(2, stream=True),),
            (programs.generator, 3),
        )

    def test_process_is_as_before(self) -> None:
        shared = pool()
        shared.add(programs.with_switches, 1)
        shared.add(programs.function, 2)
        expected = alone(lambda: (torch.rand(2), torch.rand(2, device="cuda"), random.random()))
        random.seed(4)
        wanted = random.Random(4).random()
        shared.run()
        self.assertEqual(random.random(), wanted)
        harness.assert_same(torch.rand(2), expected[0])
        harness.assert_same(torch.rand(2, device="cuda"), expected[1])
        self.assertEqual(torch.get_default_dtype(), torch.float32)
        self.assertFalse(torch.are_deterministic_algorithms_enabled())

    def test_more_jobs_later(self) -> None:
        """From a job, from another thread, and after all have ended."""
        expected = alone(programs.generator, 2)
        shared = pool()
        added: list[Any] = []

        def adding() -> Iterator[None]:
            yield
            added.append(shared.add(programs.generator, 2))
            yield
            thread = threading.Thread(
                target=lambda: added.append(shared.add(programs.generator, 2))
            )
            thread.start()
            thread.join()
            yield

        shared.add(adding)
        shared.run()
        added.append(shared.add(programs.function, 2))
        self.assertEqual(len(shared.run()), 4)
        self.assertEqual([job.result() for job in added], [expected] * 3)


class EndTest(Jobs):
    """Jobs that end otherwise than by returning."""

    def test_failure_ends_one_job_alone(self) -> None:
        expected = alone(programs.generator, 1)

        def failing() -> Iterator[Tensor]:
            big = torch.ones(BIG, device="cuda")
            cycle: list[Any] = [big]
            cycle.append(cycle)
            try:
                yield big
                raise ValueError("of this job")
            except ValueError as error:
                raise KeyError("as it said") from error

        shared = pool()
        failed, other = shared.add(failing, name="fails"), shared.add(programs.generator, 1)
        shared.run()
        kept = other.latest.nbytes + failed.latest.nbytes
        self.assertEqual(allocated()[0], self.left[0] + kept)
        failed.latest = other.latest = None
        self.assertEqual((failed.state, other.state), ("failed", "done"))
        self.assertEqual(other.result(), expected)
        raises(KeyError, failed.result, "as it said")
        self.assertIsInstance(failed.exception.__cause__, ValueError)
        self.assertIn("KeyError", str(shared))

    def test_failure_at_once(self) -> None:
        shared = pool()
        failed = shared.add(lambda: 1 / 0)
        shared.run()
        raises(ZeroDivisionError, failed.result)

    def test_out_of_memory(self) -> None:
        expected = alone(programs.generator, 1)

        def greedy() -> Iterator[None]:
            yield
            torch.ones(1 << 40, device="cuda")

        shared = pool()
        failed, other = shared.add(greedy), shared.add(programs.generator, 1)
        shared.run()
        raises(torch.cuda.OutOfMemoryError, failed.result)
        self.assertEqual(other.result(), expected)

    def test_cancel(self) -> None:
        """Both kinds of jobs, one that waits, one that has not begun, by themselves and others."""
        shared = pool()
        cleaned: list[str] = []

        def endless(name: str) -> Iterator[int]:
            big = torch.ones(BIG, device="cuda")
            try:
                while True:
                    yield big.numel()
            finally:
                cleaned.append(name)

        def endless_function() -> None:
            try:
                while True:
                    lms.step()
            finally:
                cleaned.append("function")

        def cancelling() -> Iterator[None]:
            yield
            late = shared.add(endless, "late")
            for job in (late, generator, function):
                job.cancel()
            yield
            mine.cancel()
            yield
            raise AssertionError("it was cancelled")

        generator = shared.add(endless, "generator")
        function = shared.add(endless_function)
        mine = shared.add(cancelling)
        jobs = shared.run()
        self.assertEqual([job.state for job in jobs], ["cancelled"] * 4)
        self.assertEqual(sorted(cleaned), ["function", "generator"])
        raises(lms.jobs.JobCancelled, generator.result, "was cancelled")
        mine.cancel()  # nothing happens

    def test_failure_while_cancelled(self) -> None:
        shared = pool()

        def stubborn() -> Iterator[None]:
            try:
                job.cancel()
                yield
            finally:
                raise ValueError("in the end")

        job = shared.add(stubborn)
        shared.run()
        raises(ValueError, job.result, "in the end")

    def test_pause(self) -> None:
        shared = pool()
        order: list[str] = []

        def pausing() -> Iterator[None]:
            yield
            other.pause()
            waiting.pause()
            done = len(order)
            for _ in range(4):
                yield
            self.assertEqual(order[done:], [], "paused jobs ran")
            waiting.resume()
            other.resume()

        mine = shared.add(pausing)
        other = shared.add(counting, 6, order, "other")
        waiting = shared.add(counting, 6, order, "waiting")
        shared.run()
        mine.result()
        self.assertEqual(order.count("other"), 6)
        self.assertEqual(order.count("waiting"), 6)

    def test_pause_of_the_job_that_runs(self) -> None:
        shared = pool()
        order: list[str] = []

        def pausing() -> Iterator[None]:
            mine.pause()
            order.append("before")
            yield
            order.append("after")

        def resuming() -> None:
            while mine.state != "paused":
                time.sleep(0.01)
            mine.resume()

        mine = shared.add(pausing)
        other = threading.Thread(target=resuming)
        other.start()
        shared.run()
        other.join()
        self.assertEqual(order, ["before", "after"])

    def test_early_stop(self) -> None:
        """What is called after each step looks at jobs and ends them, or one by failing."""
        expected = alone(programs.generator, 1)
        seen: list[tuple[str, int]] = []

        def look(job: Any) -> None:
            seen.append((job.name, job.steps_done))
            self.assertEqual(job.latest.device.type, "cuda")
            if job.steps_done == 2 and job.name == "worse":
                job.cancel()
            if job.steps_done == 3 and job.name == "looked at":
                raise ValueError("of the one that looks")

        shared = pool(on_step=look)
        best = shared.add(programs.generator, 1, name="best")
        worse = shared.add(programs.generator, 2, name="worse")
        failed = shared.add(programs.generator, 3, name="looked at")
        shared.run()
        self.assertEqual(best.result(), expected)
        self.assertEqual((worse.state, worse.steps_done), ("cancelled", 2))
        raises(ValueError, failed.result, "that looks")
        self.assertEqual(
            [name for name, count in seen if count == 2], ["best", "worse", "looked at"]
        )
        for job in shared.jobs:
            job.latest = None

    def test_interrupt(self) -> None:
        """As Ctrl-C does, in the thread that runs the pool."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        shared = pool()

        def endless() -> Iterator[None]:
            big = torch.ones(BIG, device="cuda")
            while True:
                yield
                if big is not None:
                    _thread.interrupt_main()
                    big = None

        job, other = shared.add(endless), shared.add(endless)
        raises(KeyboardInterrupt, shared.run)
        self.assertEqual((job.state, other.state), ("cancelled", "cancelled"))


class OrderTest(Jobs):
    """Who has which turns."""

    def order(self, schedule: Any, **turns: dict[str, Any]) -> str:
        shared = pool(schedule=schedule)
        order: list[str] = []
        for name, settings in turns.items():
            count = settings.pop("count", 6)
            shared.add(counting, count, order, name, name=name, **settings)
        for job in shared.run():
            job.result()
        return "".join(order)

    def test_round_robin(self) -> None:
        """The first turn has two steps."""
        order = self.order(lms.jobs.RoundRobin(), a={}, b={"count": 3}, c={})
        self.assertEqual(order, "aabbccabcacacac")

    def test_priorities(self) -> None:
        order = self.order(
            lms.jobs.Priorities(), a={}, b={"priority": 2}, c={"priority": 2}, d={"priority": 1}
        )
        self.assertEqual(order[-12:], "d" * 6 + "a" * 6)
        self.assertEqual(set(order[:12]), {"b", "c"})

    def test_long_turns_do_not_end(self) -> None:
        shared = pool(turn_seconds=1e6)
        order: list[str] = []
        for name in "ab":
            shared.add(counting, 6, order, name)
        shared.run()
        self.assertEqual("".join(order)[:4], "aabb")
        self.assertEqual("".join(order)[4:], "aaaabbbb")

    def test_schedule_that_fails(self) -> None:
        class Broken:
            def choose(self, waiting: Any) -> Any:
                raise ZeroDivisionError

        shared = pool(schedule=Broken())
        found = [shared.add(counting, 6, [], name) for name in "ab"]
        raises(ZeroDivisionError, shared.run)
        self.assertEqual({job.state for job in found}, {"cancelled"})

    def test_wrong_choice(self) -> None:
        class Wrong:
            def choose(self, waiting: Any) -> Any:
                return None

        shared = pool(schedule=Wrong())
        shared.add(counting, 6, [], "a")
        shared.add(counting, 6, [], "b")
        raises(ValueError, shared.run, "chose None")


class InterfaceTest(Jobs):
    def test_imports(self) -> None:
        import torch.cuda.lms.jobs as by_name
        from torch.cuda.lms import jobs

        self.assertIs(by_name, jobs)
        self.assertIs(torch.cuda.lms.jobs, jobs)
        self.assertEqual(jobs.Pool.__module__, "torch.cuda.lms.jobs")
        raises(AttributeError, lambda: lms.job, "job")

    def test_table(self) -> None:
        shared = pool()
        job = shared.add(counting, 6, [], "a", name="one of them", steps=6, per_step=(8, "images"))
        self.assertEqual(job.remaining, float("inf"))
        raises(RuntimeError, job.result, "has not ended, it is waiting")
        shared.run()
        torch.cuda.synchronize()
        self.assertEqual(job.remaining, 0)
        self.assertGreater(job.step_seconds, 0)
        self.assertGreater(job.device_seconds, 0)
        self.assertEqual(job.latest, 5)
        for word in ("one of them", "done", "6 of 6", "images"):
            self.assertIn(word, str(shared))

    def test_lines(self) -> None:
        """Those of jobs that have not ended take the place of what was there."""

        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        shared = pool()
        first = shared.add(counting, 6, [], "a", name="first", steps=6)
        shared.add(counting, 6, [], "b", name="second")
        for out, is_shown in ((Terminal(), True), (io.StringIO(), False)):
            lines = table.Lines(out)
            lines.show(shared.jobs)
            shown = "first: waiting, step 0 of 6\nsecond: waiting, step 0\n"
            self.assertEqual(out.getvalue(), shown if is_shown else "")
            lines.show(shared.jobs)  # too early
            lines.clear()
            self.assertEqual(out.getvalue(), shown + "\x1b[2A\x1b[J" if is_shown else "")
        first.cancel()
        terminal = Terminal()
        table.Lines(terminal).show(shared.jobs)
        self.assertEqual(terminal.getvalue(), "second: waiting, step 0\n")

    def test_wrong_arguments(self) -> None:
        jobs = lms.jobs
        raises(ValueError, lambda: jobs.Pool(devices=99), "99")
        raises(ValueError, lambda: jobs.Pool(devices=0), "0")
        raises(ValueError, lambda: jobs.Pool(devices=[0, 0]), "different")
        raises(ValueError, lambda: jobs.Pool(devices=[77]), "77")
        raises(TypeError, lambda: jobs.Pool(devices="cuda"), "str")
        raises(TypeError, lambda: jobs.Pool(devices=[True]), "bool")
        raises(ValueError, lambda: jobs.Pool(turn_seconds=0), "turn_seconds")
        raises(TypeError, lambda: jobs.Pool(schedule=3), "choose")
        raises(TypeError, lambda: jobs.Pool(on_step=3), "on_step")
        shared = pool()
        raises(TypeError, lambda: shared.add(3), "function")
        raises(TypeError, lambda: shared.add(counting, steps=1.5), "steps")
        raises(ValueError, lambda: shared.add(counting, steps=0), "steps")
        raises(ValueError, lambda: shared.add(counting, weight=0), "weight")
        raises(ValueError, lambda: shared.add(counting, priority=None), "priority")
        raises(TypeError, lambda: shared.add(counting, per_step=3), "per_step")
        raises(ValueError, lambda: shared.add(counting, per_step=(0, "x")), "per_step")
        self.assertEqual(shared.run(), [])

    def test_one_pool_at_a_time(self) -> None:
        shared = pool()

        def nested() -> None:
            raises(RuntimeError, pool().run, "runs already")

        job = shared.add(nested)
        shared.run()
        job.result()


if __name__ == "__main__":
    gc.freeze()  # what has been imported need not be looked at by each collection
    run_tests()
