"""A job: its program, how far it is, and the thread that runs it."""

from __future__ import annotations

import gc
import math
import threading
import traceback
from collections.abc import Callable, Generator
from contextlib import closing
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import torch

from .belongings import Belongings
from .timing import StepTimes

if TYPE_CHECKING:
    from .turns import Device, Turns

WAITING: Final = "waiting"
RUNNING: Final = "running"
PAUSED: Final = "paused"
DONE: Final = "done"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"

_numbers = count(1)  # of jobs, for the engine: 0 is nobody's


class JobCancelled(Exception):  # noqa: N818 (it is no error)
    r"""Raised by :func:`torch.cuda.lms.step` in a job that is cancelled, and by its ``result``."""


class Job:
    r"""A job of a pool, made by :meth:`Pool.add`.

    Attributes:
        name (str): what tables call it.
        number (int): from 1 on, another for each job of the process.
        steps (int, optional): how many it will do, as its pool was told.
        weight (float): its share of a device, for :class:`FairShare`.
        priority (float): for :class:`Priorities`.
        per_step (tuple of float and str, optional): how many of what it does in a step.
        steps_done (int): steps that its program has ended. Its device may be behind.
        latest: what its generator yielded last.
        state (str): "waiting", "running", "paused", "done", "failed" or "cancelled".
        exception (BaseException, optional): why it failed.
        device (int, optional): where its tensors are. None: it has not begun.
        last_turn (int): the number of its last turn among all turns of the pool; 0: it had none.
        paged_in, paged_out (int): bytes that LMS copied to its devices and from them in its turns.
    """

    def __init__(
        self, turns: Turns, program: Callable[[], Any], belongings: Belongings, may_move: bool
    ) -> None:
        self.number = next(_numbers)
        self.name = f"job {self.number}"
        self.steps: int | None = None
        self.weight = 1.0
        self.priority = 0.0
        self.per_step: tuple[float, str] | None = None
        self.steps_done = 0
        self.latest: Any = None
        self.state: str = WAITING
        self.exception: BaseException | None = None
        self.device: int | None = None
        self.last_turn = 0
        self.paged_in = 0
        self.paged_out = 0
        self._turns = turns
        self._program: Callable[[], Any] | None = program
        self._generator: Generator[Any, None, Any] | None = None
        self._result: Any = None
        self._may_move = may_move
        self._belongings = belongings
        self._draws_from = torch.cuda.current_device()  # whose generator is this job's
        self._times = StepTimes()
        self._is_to_cancel = False
        self._is_to_pause = False
        self._granted: Device | None = None  # the device whose turn it has or had last
        self._gate = turns.threads.gate()
        self._thread: threading.Thread | None = None  # None: it has not begun
        self._waits = 0  # threads that work for it and wait for its device
        self._waits_lock = threading.Lock()  # around the floor's being left and taken for these

    def __repr__(self) -> str:
        return f"<{self.name}: {self.state}, {self.steps_done} steps>"

    @property
    def has_ended(self) -> bool:
        """Whether it is done, failed or cancelled."""
        return self.state in (DONE, FAILED, CANCELLED)

    @property
    def _can_move(self) -> bool:
        """Whether another device may try to run it."""
        return self._may_move and self._generator is not None and not self._is_to_cancel

    @property
    def step_seconds(self) -> float | None:
        """Seconds that a step takes on the device, by the last ones; None: not known yet."""
        return self._times.step_seconds

    @property
    def device_seconds(self) -> float:
        """Seconds that its steps have taken on devices."""
        return self._times.device_seconds

    @property
    def remaining(self) -> float:
        """Seconds on a device until its end, as expected; infinite where that is unknown."""
        if self.steps is None or self.step_seconds is None:
            return math.inf
        return max(self.steps - self.steps_done, 0) * self.step_seconds

    def result(self) -> Any:
        r"""Return what the program returned.

        Raises:
            BaseException: what the program raised, if it failed.
            JobCancelled: if it was cancelled.
            RuntimeError: if it has not ended.
        """
        if self.exception is not None:
            raise self.exception
        if self.state == CANCELLED:
            raise JobCancelled(f"{self.name} was cancelled")
        if self.state != DONE:
            raise RuntimeError(f"{self.name} has not ended, it is {self.state}")
        return self._result

    def cancel(self) -> None:
        r"""End the job when its step ends. A generator is closed, so what is in ``finally`` runs.

        Any thread may call it, also the job's own. It does nothing if the job has ended.
        """
        self._turns.cancel(self)

    def pause(self) -> None:
        r"""Give the job no turns any more from the end of its step on."""
        self._turns.pause(self)

    def resume(self) -> None:
        r"""Give the job turns again."""
        self._turns.resume(self)

    # --- its thread, started with its first turn ---

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._live, name=self.name, daemon=True)
        self._thread.start()

    def _live(self) -> None:
        """From its first turn to its end."""
        torch.cuda.lms.enable_thread()
        torch.cuda.lms._here.job = self
        try:
            self._turns.begin_turn(self)
            self._result = self._run()
            state = DONE
        except JobCancelled as error:
            state = CANCELLED
            _forget_frames(error)
        except BaseException as error:
            state = FAILED
            _forget_frames(error)
            self.exception = error
        self._let_go()
        gc.collect()  # a model may be part of a cycle
        self._turns.end(self, state)

    def _run(self) -> Any:
        assert self._program is not None
        if self._is_to_cancel:
            raise JobCancelled
        torch.cuda.lms._here.end_step = self._end_step
        try:
            result = self._program()
        finally:
            del torch.cuda.lms._here.end_step
        if not isinstance(result, Generator):
            return result
        self._generator = result
        with closing(result):
            while True:
                try:
                    self.latest = next(result)
                except StopIteration as end:
                    return end.value
                self._end_step()

    def _end_step(self) -> None:
        """Returns when the next step may begin.

        Raises:
            JobCancelled: there is to be none.
        """
        self._turns.end_step(self)
        if self._is_to_cancel:
            raise JobCancelled(f"{self.name} is cancelled")

    def _begin_wait(self) -> None:
        """A thread waits for the device: others may run."""
        with self._waits_lock:
            self._waits += 1
            if self._waits == 1:
                self._turns.floor.leave(self)

    def _end_wait(self) -> None:
        """It has waited, and goes on when nobody else runs."""
        with self._waits_lock:
            self._waits -= 1
            if self._waits == 0:
                self._turns.floor.take(self)

    def _join(self) -> None:
        """Waits for the end of its thread."""
        if self._thread is not None:
            self._thread.join()

    def _let_go(self) -> None:
        """Of all that may have tensors but what the user is given."""
        self._program = self._generator = None


def _forget_frames(error: BaseException | None) -> None:
    """Lets go of the variables of functions that have raised the error; what it says stays."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def current() -> Job | None:
    """The job whose thread this is."""
    return getattr(torch.cuda.lms._here, "job", None)
