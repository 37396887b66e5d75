"""Which job's program runs: one at a time, since they share what a process has only once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .belongings import Belongings

if TYPE_CHECKING:
    from .job import Job
    from .threads import Lock


class Floor:
    """A job has it while its program runs, and the process has the job's belongings then."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._holder: Job | None = None
        self._last: Job | None = None  # whose belongings the process has; None: nobody's

    def take(self, job: Job) -> None:
        """Waits until the floor is free."""
        self._lock.acquire()
        self._holder = job
        if self._last is not job:
            if self._last is not None:
                self._last._belongings = Belongings()  # as it left them, since nothing ran
            job._belongings.apply()
            self._last = job

    def leave(self, job: Job) -> None:
        """Lets other jobs run, if this one does."""
        if self._holder is job:
            self._holder = None
            self._lock.release()
