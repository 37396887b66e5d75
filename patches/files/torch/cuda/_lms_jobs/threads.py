"""How threads of jobs wait for each other: all of it, so that it can be done in virtual time."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Lock(Protocol):
    """What the floor is guarded by."""

    def acquire(self) -> object:
        """Waits until it is free, and takes it."""

    def release(self) -> None:
        """Gives it back; any thread may."""


class FairLock:
    """A lock that those who wait for it get in the order in which they came."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._is_taken = False
        self._waiting: deque[threading.Lock] = deque()  # a taken lock for each who waits

    def acquire(self) -> None:
        with self._guard:
            if not self._is_taken:
                self._is_taken = True
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()

    def release(self) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()  # handed over, so it stays taken
            else:
                self._is_taken = False


class Threads:
    """What a pool asks for where its threads wait.

    A simulation in virtual time puts a class derived from it in its place, in this module.
    """

    def lock(self) -> Lock:
        """Makes the lock for which jobs on several devices wait, first come, first served."""
        return FairLock()

    def closed(self) -> Lock:
        """Makes a lock that is taken, for who waits until another thread gives it back."""
        lock = FairLock()
        lock.acquire()
        return lock

    def gate(self) -> threading.Semaphore:
        """Makes what one job waits at, without a device, until its next turn is granted."""
        return threading.Semaphore(0)

    def together(self) -> AbstractContextManager[object]:
        """Jobs that begin to run in this context do so at the same time, as far as threads do."""
        return nullcontext()

    def started(self, device: int) -> None:
        """A job is about to run on a device where none ran; called by who grants its turn."""

    def entered(self, device: int) -> None:
        """The calling thread works on a device that it has been granted."""

    def stopped(self, device: int) -> None:
        """The device has nothing more to run."""
