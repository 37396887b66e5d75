"""Turns on devices: whose it is, how one ends, and who has the next."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch.cuda._lms_library import engine
from torch.cuda._lms_log import logger

from . import moving, threads
from .belongings import exchange_generators
from .floor import Floor
from .job import CANCELLED, FAILED, PAUSED, RUNNING, WAITING, Job
from .schedules import Schedule

# Steps of a turn of a job whose steps have not been timed, since LMS learns in the first ones, or
# compute nothing.
_FEW_STEPS = 5
_SHORTEST = 1e-4  # seconds: a shorter step computes nothing, as that of a job that watches others


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


class Turns:
    """The turns of a pool's jobs on its devices.

    The thread of the job whose turn ends says who is next, and lets that one's thread go on.
    """

    def __init__(
        self,
        jobs: list[Job],
        devices: list[int],
        schedule: Schedule,
        turn_seconds: float,
        on_step: Callable[[Job], object] | None,
    ) -> None:
        self.threads = threads.Threads()
        self.floor = Floor(self.threads.lock())
        self.is_running = False  # the pool
        self._jobs = jobs
        self._devices = {index: Device(index) for index in devices}
        self._schedule = schedule
        self._seconds = turn_seconds
        self._on_step = on_step
        # Around all that is known of jobs and devices. A schedule may call methods of jobs.
        # Nobody waits for the floor, or for a device, while holding it.
        self._lock = threading.RLock()
        self._has_ended = threading.Condition(self._lock)  # a job
        self._count = 0  # of turns
        self._error: BaseException | None = None  # the schedule's

    @property
    def has_several(self) -> bool:
        """Whether there are several devices."""
        return len(self._devices) > 1

    def running_on(self, device: int) -> Job | None:
        """Whose turn it is on a device."""
        return self._devices[device].running if device in self._devices else None

    # --- what the pool calls ---

    def add(self, job: Job) -> None:
        """A job that has not begun."""
        with self._lock:
            self._jobs.append(job)
            self._fill()

    def begin(self) -> None:
        """The pool runs from now on."""
        with self._lock, self.threads.together():
            self.is_running = True
            self._fill()

    def wait_for_ends(self, seconds: float) -> bool:
        """Waits until all jobs have ended, but no longer; returns whether they have."""
        with self._lock:
            if all(job.has_ended for job in self._jobs):
                return True
            self._has_ended.wait(seconds)
            return False

    def raise_error(self) -> None:
        """Raises what the schedule has raised, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    # --- what jobs' threads call ---

    def begin_turn(self, job: Job) -> None:
        """The job has been granted a device, and returns when it may use one."""
        while not self._enter(job):
            # It has to stay where its tensors are.
            self._give_back(job)

    def _enter(self, job: Job) -> bool:
        device = job._granted
        assert device is not None
        self.threads.entered(device.index)
        torch.cuda.set_device(device.index)
        self.floor.take(job)
        if job.device not in (None, device.index):
            reason = moving.move(job, self._jobs, device.index)
            if reason:
                logger.info("%s stays on cuda:%d, since %s", job.name, job.device, reason)
                job._may_move = False
                return False
            engine().end_job(job.device, job.number)
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
        return True

    def end_step(self, job: Job) -> None:
        """Returns when the job may go on, or is to end."""
        device = job._granted
        assert device is not None
        job._times.end_step(torch.cuda.current_stream(device.index))
        job._times.read()
        job.steps_done += 1
        if self._on_step is not None:
            self._on_step(job)
        with self._lock:
            device.steps_left -= 1
            goes_on = job._is_to_cancel or self._goes_on(device, job)
        if not goes_on:
            self._end_turn(device, job)
            self._give_back(job)
            self.begin_turn(job)
        elif self.has_several:
            # It may never wait for its device.
            self.floor.leave(job)
            self.floor.take(job)

    def end(self, job: Job, state: str) -> None:
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
            self.floor.leave(job)

    def _give_back(self, job: Job) -> None:
        """Lets others have the job's device, and waits for a next turn."""
        self.floor.leave(job)
        assert job._granted is not None
        with self._lock:
            job.state = PAUSED if job._is_to_pause else WAITING
            job._is_to_pause = False
            self._pass_on(job._granted)
        job._gate.acquire()

    # --- with the lock: who is next ---

    def _begin_steps(self, device: Device, job: Job) -> None:
        self._count += 1
        job.last_turn = self._count
        seconds = job.step_seconds
        device.steps_left = _FEW_STEPS
        if seconds is not None and seconds > _SHORTEST:
            device.steps_left = max(1, round(self._seconds / seconds))
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
        self._fill(device)
        if device.running is None:
            device.is_idle = True
            engine().begin_turn(device.index, 0)
            self.threads.stopped(device.index)

    def _fill(self, own: Device | None = None) -> None:
        """Gives turns on devices where nobody has one, if jobs wait.

        The caller's own one chooses first, and begins last: what its thread does here is part of
        its turn, in virtual time.
        """
        if not self.is_running:
            return
        granted: list[tuple[Device, Job]] = []
        for device in ([own] if own else []) + list(self._devices.values()):
            job = self._following(device, None) if device.running is None else None
            if job is not None:
                device.running, device.next = job, None
                job.state = RUNNING
                job._granted = device
                granted.append((device, job))
        for device, job in reversed(granted):
            self._let_begin(device, job)

    def _let_begin(self, device: Device, job: Job) -> None:
        if device.is_idle:
            device.is_idle = False
            self.threads.started(device.index)
        if job._thread is None:
            job._start()
        else:
            job._gate.release()

    def _following(self, device: Device, current: Job | None) -> Job | None:
        """Who has the next turn on a device; `current`: the job that would like to go on there."""
        waiting = [job for job in self._jobs if job.state == WAITING or job is current]
        own = [job for job in waiting if job.device in (None, device.index)]
        ending = [job for job in own if job._is_to_cancel]
        if ending:
            return ending[0]
        if device.next in own:
            return device.next
        if own:
            return self._choose(own)
        # There is more than another device can run.
        others = [job for job in waiting if job._can_move]
        return self._choose(others) if others else None

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
            for job in self._jobs:
                job._is_to_cancel = True
            return waiting[0]
        return chosen

    # --- what users call, as methods of jobs ---

    def cancel(self, job: Job) -> None:
        """The job ends at the end of its step."""
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

    def pause(self, job: Job) -> None:
        """The job gets no turns any more."""
        with self._lock:
            if job._is_to_cancel:
                return
            if job.state == WAITING:
                job.state = PAUSED
            elif job.state == RUNNING:
                job._is_to_pause = True

    def resume(self, job: Job) -> None:
        """The job gets turns again."""
        with self._lock:
            job._is_to_pause = False
            if job.state == PAUSED:
                job.state = WAITING
                self._fill()


def _paged(device: int) -> tuple[int, int]:
    """Bytes paged in and out on a device until now."""
    stats = torch.cuda.lms.stats(device)
    return stats["lms.page_in.bytes"], stats["lms.page_out.bytes"]
