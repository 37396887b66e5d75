"""Autocast's cache of casts with jobs on several devices, of which the process has one.

PyTorch empties it where a thread leaves autocast. A weight that a job on another device uses twice
in a forward pass would then be cast twice, and its gradient be summed in another precision. So the
cache is emptied where no other job is within autocast. Until that has happened there are old casts
of the job's weights in it, and the job waits before it enters autocast again.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .job import Job
    from .threads import Lock, Threads


class Casts:
    """Who is within autocast."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._lock = threading.Lock()  # around what follows; nobody waits with it
        self._inside: Counter[Job] = Counter()  # how many threads of a job
        self._old: set[Job] = set()  # jobs that have left it since the cache was emptied
        self._waiting: list[Lock] = []

    def enter(self, job: Job) -> None:
        """Returns when no casts are there that are older than the job's weights."""
        while (gate := self._try_to_enter(job)) is not None:
            job._begin_wait()
            try:
                gate.acquire()
            finally:
                job._end_wait()

    def _try_to_enter(self, job: Job) -> Lock | None:
        """What to wait for, or None."""
        with self._lock:
            if job in self._old and self._are_others_inside(job):
                gate = self._threads.closed()
                self._waiting.append(gate)
                return gate
            self._inside[job] += 1
            return None

    def leave(self, job: Job) -> bool:
        """Returns whether the cache is to be emptied."""
        with self._lock:
            self._inside[job] -= 1
            if self._are_others_inside(job):
                self._old.add(job)
                return False
            self._old.clear()
            waiting, self._waiting = self._waiting, []
        for gate in waiting:
            gate.release()
        return True

    def _are_others_inside(self, job: Job) -> bool:
        return any(count > 0 for other, count in self._inside.items() if other is not job)


@contextmanager
def keeping_casts(threads: Threads, job_of_thread: Callable[[], Job | None]) -> Iterator[None]:
    """While it is open, no job empties the cache of another one."""
    casts = Casts(threads)
    here = threading.local()  # .left: this thread has left autocast, and empties the cache next
    increment, decrement = torch.autocast_increment_nesting, torch.autocast_decrement_nesting
    clear = torch.clear_autocast_cache

    def entering() -> int:
        depth = increment()
        job = job_of_thread() if depth == 1 else None
        if job is not None:
            casts.enter(job)
        return depth

    def leaving() -> int:
        depth = decrement()
        here.left = depth == 0
        return depth

    def clearing() -> None:
        job = job_of_thread() if getattr(here, "left", False) else None
        here.left = False
        if job is None or casts.leave(job):
            clear()

    hooks = (entering, leaving, clearing)
    _put(*hooks)
    try:
        yield
    finally:
        _put(increment, decrement, clear)


def _put(*functions: Callable[[], object]) -> None:
    names = ("autocast_increment_nesting", "autocast_decrement_nesting", "clear_autocast_cache")
    for name, function in zip(names, functions):
        setattr(torch, name, function)
