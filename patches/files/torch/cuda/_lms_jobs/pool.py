"""A pool: devices, the jobs that take turns there, and how a turn is passed on."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch.cuda._lms_library import engine

from . import threads
from .belongings import Belongings, exchange_generators
from .checks import checked_per_step, device_indices, is_number
from .floor import Floor
from .job import CANCELLED, FAILED, PAUSED, RUNNING, WAITING, Job, current
from .schedules import LongestRemaining, Schedule
from .table import Lines, table

_FIRST_STEPS = 2  # of a job whose steps have not been timed
_LOOK_SECONDS = 0.5  # between looks at how far jobs are

_running = threading.Lock()  # held by the pool that runs: what is each job's own is all of them


class Device:
    """A device of a pool."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.running: Job | None = None  # whose turn it is
        self.is_idle = True
        self.next: Job | None = None  # who has been chosen for the turn after that
        self.steps_left = 0  # of the turn
        # Where the last job's work ends.
        self.stream: torch.cuda.Stream | None = None
        self.event: torch.cuda.Event | None = None
        self.paged = (0, 0)  # bytes in and out until the turn began


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
        progress (bool): whether to tell on standard error how far jobs are.

    Raises:
        TypeError, ValueError: if there are no such devices, or an argument is something else.
        RuntimeError: if there is no CUDA device.
    """

    def __init__(
        self,
        devices: int | Iterable[int] | None = None,
        schedule: Schedule | None = None,
        turn_seconds: float = 10.0,
        progress: bool = True,
    ) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError("a pool of jobs needs a CUDA device, and there is none")
        torch.cuda.init()
        if not is_number(turn_seconds) or turn_seconds <= 0:
            raise ValueError(f"turn_seconds must be a number above 0, got {turn_seconds!r}")
        if schedule is not None and not callable(getattr(schedule, "choose", None)):
            raise TypeError(f"a schedule has a method choose, and {schedule!r} has none")
        self.jobs: list[Job] = []
        self._devices = [Device(index) for index in device_indices(devices)]
        self._schedule: Schedule = schedule or LongestRemaining()
        self._turn_seconds = turn_seconds
        self._shows_progress = progress
        self._threads = threads.Threads()
        self._floor = Floor(self._threads.lock())
        # Around all that is known of jobs and devices. A schedule may call methods of jobs.
        self._lock = threading.RLock()
        self._has_ended = threading.Condition(self._lock)  # a job
        self._before: Belongings | None = None  # the process's own, while the pool runs
        self._turns = 0
        self._error: BaseException | None = None  # the schedule's

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
        with self._lock:
            is_outside = self._before is not None and current() is None
            belongings = self._before if is_outside else Belongings()
            assert belongings is not None
            program = partial(function, *args, **kwargs)
            job = Job(self, program, name, steps, weight, priority, per_step, may_move, belongings)
            self.jobs.append(job)
            self._fill()
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
                self._wait()
            finally:
                self._before.apply()
                self._before = None
        finally:
            _running.release()
        if self._shows_progress:
            print(self, file=sys.stderr)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return list(self.jobs)

    def _wait(self) -> None:
        """Until all jobs have ended."""
        lines = Lines(sys.stderr) if self._shows_progress else None
        try:
            with self._lock:
                self._fill()
            self._wait_for_ends(lines)
        except KeyboardInterrupt:
            for job in self.jobs:
                job.cancel()
            self._wait_for_ends(lines)
            raise
        finally:
            if lines:
                lines.clear()
        for job in self.jobs:
            if job._thread:
                job._thread.join()

    def _wait_for_ends(self, lines: Lines | None) -> None:
        with self._lock:
            while not all(job.has_ended for job in self.jobs):
                self._has_ended.wait(_LOOK_SECONDS)  # so that Ctrl-C is seen in any case
                if lines:
                    lines.show(self.jobs)

    # --- what jobs' threads call ---

    def _begin_turn(self, job: Job) -> None:
        """The job has been granted a device."""
        device = job._granted
        assert device is not None
        self._floor.take(job)
        torch.cuda.set_device(device.index)
        if job._draws_from != device.index:
            exchange_generators(job._draws_from, device.index)
            job._draws_from = device.index
        job.device = device.index
        stream = torch.cuda.current_stream(device.index)
        if device.event is not None and device.stream != stream:
            stream.wait_event(device.event)
        engine().begin_turn(device.index, job.number)
        device.paged = _paged(device.index)
        job._times.begin_turn(stream)
        with self._lock:
            self._begin_steps(device, job)

    def _end_step(self, job: Job) -> None:
        """Returns when the job may go on, or is to end."""
        device = job._granted
        assert device is not None
        job._times.end_step(torch.cuda.current_stream(device.index))
        job._times.read()
        job.steps_done += 1
        with self._lock:
            device.steps_left -= 1
            if job._is_to_cancel or self._goes_on(device, job):
                return
        self._end_turn(device, job)
        with self._lock:
            job.state = PAUSED if job._is_to_pause else WAITING
            job._is_to_pause = False
            self._pass_on(device)
        job._gate.acquire()
        self._begin_turn(job)

    def _end(self, job: Job, state: str) -> None:
        """The job has ended, and its thread is about to."""
        device = job._granted
        assert device is not None
        try:
            self._end_turn(device, job)
            engine().end_job(device.index, job.number)
        except BaseException as error:  # of a device that has failed, as the job may know
            job.exception = job.exception or error
            state = FAILED
        with self._lock:
            job._times.read()
            job.state = state
            self._has_ended.notify_all()
            self._pass_on(device)

    def _end_turn(self, device: Device, job: Job) -> None:
        try:
            device.stream = torch.cuda.current_stream(device.index)
            device.event = device.stream.record_event()
            before, now = device.paged, _paged(device.index)
            job.paged_in += now[0] - before[0]
            job.paged_out += now[1] - before[1]
        finally:
            self._floor.leave(job)

    # --- with the lock: who is next ---

    def _begin_steps(self, device: Device, job: Job) -> None:
        self._turns += 1
        job.last_turn = self._turns
        seconds = job.step_seconds
        device.steps_left = _FIRST_STEPS
        if seconds is not None:
            device.steps_left = max(1, round(self._turn_seconds / max(seconds, 1e-9)))
        self._announce(device, job)

    def _goes_on(self, device: Device, job: Job) -> bool:
        """Whether the job does another step now."""
        if job._is_to_pause:
            return False
        if device.steps_left > 0:
            self._announce(device, job)
            return True
        device.next = self._following(device, job)
        if device.next is not job:
            return False
        device.next = None
        self._begin_steps(device, job)
        return True

    def _announce(self, device: Device, job: Job) -> None:
        """Tells the engine who is next, if a turn's last step begins."""
        if device.steps_left == 1:
            following = self._following(device, job)
            if following is not None and following is not job:
                device.next = following
                engine().announce_turn(device.index, following.number)

    def _pass_on(self, device: Device) -> None:
        """A turn has ended."""
        device.running = None
        self._fill()
        if device.running is None:
            device.is_idle = True
            engine().begin_turn(device.index, 0)
            self._threads.stopped(device.index)

    def _fill(self) -> None:
        """Gives turns on devices that have none, if jobs wait."""
        if self._before is None:
            return  # the pool does not run
        for device in self._devices:
            if device.running is None:
                job = self._following(device, None)
                if job is not None:
                    self._grant(device, job)

    def _grant(self, device: Device, job: Job) -> None:
        device.running, device.next = job, None
        job.state = RUNNING
        job._granted = device
        if device.is_idle:
            device.is_idle = False
            self._threads.started(device.index)
        if job._thread is None:
            job._start()
        else:
            job._gate.release()

    def _following(self, device: Device, current: Job | None) -> Job | None:
        """Who has the next turn on a device; `current`: the job that would like to go on there."""
        waiting = [job for job in self.jobs if job.state == WAITING or job is current]
        own = [job for job in waiting if job.device in (None, device.index)]
        ending = [job for job in own if job._is_to_cancel]
        if ending:
            return ending[0]
        if device.next in own:
            return device.next
        return self._choose(own) if own else None

    def _choose(self, waiting: list[Job]) -> Job:
        for job in waiting:
            job._times.read()
        if len(waiting) == 1:
            return waiting[0]
        try:
            chosen = self._schedule.choose(tuple(waiting))
            if not any(chosen is job for job in waiting):
                raise ValueError(f"a schedule chose {chosen!r}, which is none of {waiting}")
        except BaseException as error:
            self._error = self._error or error
            for job in self.jobs:
                job._is_to_cancel = True
            return waiting[0]
        return chosen

    # --- what users call through jobs ---

    def _cancel(self, job: Job) -> None:
        with self._lock:
            if job.has_ended:
                return
            job._is_to_cancel = True
            if job._thread is None:
                job.state = CANCELLED
                job._let_go()
                self._has_ended.notify_all()
            elif job.state == PAUSED:
                job.state = WAITING  # its thread ends it, in a turn
            self._fill()

    def _pause(self, job: Job) -> None:
        with self._lock:
            if job.state == WAITING:
                job.state = PAUSED
            elif job.state == RUNNING:
                job._is_to_pause = True

    def _resume(self, job: Job) -> None:
        with self._lock:
            job._is_to_pause = False
            if job.state == PAUSED:
                job.state = WAITING
                self._fill()


def _paged(device: int) -> tuple[int, int]:
    stats = torch.cuda.lms.stats(device)
    return stats["lms.page_in.bytes"], stats["lms.page_out.bytes"]
