"""A pool: its jobs, and what users do with it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from .belongings import Belongings
from .checks import checked_per_step, device_indices, is_number
from .job import Job, current
from .schedules import LongestRemaining, Schedule
from .table import Lines, table
from .turns import Turns
from .waits import letting_others_run

_LOOK_SECONDS = 0.5  # between looks at how far jobs are

_running = threading.Lock()  # held by the pool that runs: what is each job's own is all of them


class Pool:
    r"""Jobs that share devices, each as if it were alone there.

    One job at a time runs on a device: its *turn* is as many steps as take ``turn_seconds``. Then
    the schedule chooses the next one. LMS is turned on if it is off. Only one pool runs at a time.

    Each job has a thread of its own, and PyTorch's settings as they are in a new thread. What a
    process has only once, random numbers and switches as for TF32, each job has of its own: as
    they are when it is added, and what it changes afterwards.

    Args:
        devices (int or iterable of int, optional): the first so many CUDA devices, or their
            indices. All by default.
        schedule (Schedule): chooses the next job, :class:`LongestRemaining` by default.
        turn_seconds (float): how long a turn takes, by the device's clock.
        on_step (callable, optional): called with a job at the end of each of its steps, in its
            thread; to look at :attr:`Job.latest` and end jobs early. It should draw no random
            numbers. What it raises ends the job.
        progress (bool): whether to tell on standard error how far jobs are.

    Raises:
        TypeError, ValueError: if there are no such devices, or an argument is something else.
        RuntimeError: if there is no CUDA device.
    """

    def __init__(
        self,
        devices: int | Iterable[int] | None = None,
        schedule: Schedule | None = None,
        turn_seconds: float = 30.0,
        on_step: Callable[[Job], object] | None = None,
        progress: bool = True,
    ) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError("a pool of jobs needs a CUDA device, and there is none")
        torch.cuda.init()
        if not is_number(turn_seconds) or turn_seconds <= 0:
            raise ValueError(f"turn_seconds must be a number above 0, got {turn_seconds!r}")
        if schedule is not None and not callable(getattr(schedule, "choose", None)):
            raise TypeError(f"a schedule has a method choose, and {schedule!r} has none")
        if on_step is not None and not callable(on_step):
            raise TypeError(f"on_step must be a function, got {type(on_step).__name__}")
        self.jobs: list[Job] = []
        self._turns = Turns(
            self.jobs,
            device_indices(devices),
            schedule or LongestRemaining(),
            turn_seconds,
            on_step,
        )
        self._shows_progress = progress
        self._before: Belongings | None = None  # the process's own, while the pool runs

    def __str__(self) -> str:
        return table(self.jobs)

    def add(
        self,
        function: Callable[..., Any],
        *args: Any,
        name: str | None = None,
        steps: int | None = None,
        weight: float = 1.0,
        priority: float = 0,
        per_step: tuple[float, str] | None = None,
        may_move: bool = True,
        **kwargs: Any,
    ) -> Job:
        r"""Add a job. It begins when a device is free and the pool runs.

        Where ``function`` returns a generator, each ``yield`` ends a step. Another function calls
        :func:`torch.cuda.lms.step` at the end of each. It should name no device but ``"cuda"``.
        Jobs may be added while the pool runs, from any thread, also by jobs.

        Args:
            function (callable): the program.
            *args: for it.
            name (str, optional): for tables.
            steps (int, optional): how many steps it will do, for :attr:`Job.remaining`.
            weight (float, optional): for :class:`FairShare`.
            priority (float, optional): for :class:`Priorities`.
            per_step (tuple, optional): how many of what it does in a step, as (8192, "tokens").
            may_move (bool, optional): whether it may go on on another device.
            **kwargs: for the function.

        Raises:
            TypeError, ValueError: if an argument is something else.
        """
        if not callable(function):
            raise TypeError(f"a job is a function, got {type(function).__name__}")
        if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int)):
            raise TypeError(f"steps must be an int, got {type(steps).__name__}")
        if steps is not None and steps <= 0:
            raise ValueError(f"steps must be above 0, got {steps}")
        if not is_number(weight) or weight <= 0:
            raise ValueError(f"weight must be a number above 0, got {weight!r}")
        if not is_number(priority):
            raise ValueError(f"priority must be a number, got {priority!r}")
        if per_step is not None:
            per_step = checked_per_step(per_step)
        # Another thread than a job's cannot know whose belongings the process has just now.
        before = self._before if current() is None else None
        program = partial(function, *args, **kwargs)
        job = Job(self._turns, program, before or Belongings(), may_move)
        job.steps, job.weight, job.priority, job.per_step = steps, weight, priority, per_step
        if name is not None:
            job.name = name
        self._turns.add(job)
        return job

    def run(self) -> list[Job]:
        r"""Run until all jobs have ended; a paused one has not.

        A job that fails ends alone: :meth:`Job.result` raises its error. Ctrl-C cancels all jobs.

        Returns:
            list of Job: all, in the order in which they were added.

        Raises:
            RuntimeError: if a pool runs already.
            BaseException: what the schedule raised. All jobs are cancelled then.
        """
        if not _running.acquire(blocking=False):
            raise RuntimeError("a pool runs already: add the jobs to that one")
        try:
            if not torch.cuda.get_enabled_lms():
                torch.cuda.set_enabled_lms(True)
            self._before = Belongings()
            try:
                with letting_others_run(self._turns) if self._turns.has_several else nullcontext():
                    self._wait()
            finally:
                self._before.apply()
                self._before = None
        finally:
            _running.release()
        if self._shows_progress:
            print(self, file=sys.stderr)
        self._turns.raise_error()
        return list(self.jobs)

    def _wait(self) -> None:
        """Until all jobs have ended."""
        lines = Lines() if self._shows_progress else None
        try:
            self._turns.begin()
            self._wait_for_ends(lines)
        except KeyboardInterrupt:
            for job in self.jobs:
                job.cancel()
            self._wait_for_ends(lines)
            raise
        finally:
            self._turns.is_running = False
            if lines:
                lines.clear()

    def _wait_for_ends(self, lines: Lines | None) -> None:
        # It looks at times whether they have, so that Ctrl-C is seen in any case.
        while not self._turns.wait_for_ends(_LOOK_SECONDS):
            if lines:
                lines.show(self.jobs)
        for job in self.jobs:
            job._join()
