"""A job that only waits for its device lets those of other devices run meanwhile.

The engine says where its operators wait (Note [Waits of the host] in `LMSWaits.h`), hooks say where
programs do.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch.cuda._lms_library import engine

from .casts import keeping_casts
from .job import Job, current

if TYPE_CHECKING:
    from .turns import Turns

_turns: Turns | None = None  # of the pool that runs, if it has several devices
# By thread: who waits in it, the innermost wait last; None: nobody lets others run for it.
_waiting: dict[int, list[Job | None]] = {}


@contextmanager
def letting_others_run(turns: Turns) -> Iterator[None]:
    """While it is open, jobs let others run where they wait."""
    global _turns
    _turns = turns
    engine().watch_waits(*(ctypes.cast(one, ctypes.c_void_p).value for one in (_BEGIN, _END)))
    undo = [
        _hook(torch.cuda, "synchronize"),
        _hook(torch.cuda.Event, "synchronize"),
        _hook(torch.cuda.Stream, "synchronize"),
    ]
    try:
        with keeping_casts(turns.threads, _job_here):
            yield
    finally:
        for restore in undo:
            restore()
        engine().watch_waits(0, 0)
        _turns = None


def _hook(owner: Any, name: str) -> Callable[[], None]:
    """Makes a function one in which others run; returns what undoes that."""
    original = getattr(owner, name)

    @wraps(original)
    def wait(*args: Any, **kwargs: Any) -> Any:
        job = current()
        if job is None or job._granted is None:
            return original(*args, **kwargs)
        _begin(job._granted.index)
        try:
            return original(*args, **kwargs)
        finally:
            _end(job._granted.index)

    setattr(owner, name, wait)
    return lambda: setattr(owner, name, original)


def _begin(device: int) -> None:
    turns = _turns
    job = _job_of_thread(turns, device) if turns else None
    if job is not None and _is_compiling():
        job = None
    _waiting.setdefault(threading.get_ident(), []).append(job)
    if job is not None:
        job._begin_wait()


def _end(device: int) -> None:
    waiting = _waiting[threading.get_ident()]
    job = waiting.pop()
    if not waiting:
        del _waiting[threading.get_ident()]
    if job is not None:
        job._end_wait()


def _job_of_thread(turns: Turns, device: int) -> Job | None:
    """For whom a thread works: a job's own, or one of autograd's, which Python has not made."""
    if isinstance(threading.current_thread(), threading._DummyThread):
        return turns.running_on(device)
    return current()


def _job_here() -> Job | None:
    return _job_of_thread(_turns, torch.cuda.current_device()) if _turns else None


def _is_compiling() -> bool:
    """Whether Dynamo compiles in this thread: others would wait for its lock, with the floor."""
    dynamo = sys.modules.get("torch._dynamo.convert_frame")
    lock = getattr(dynamo, "compile_lock", None)
    return lock is not None and lock._is_owned()


_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_int64)
# For good: a wait may end when nobody watches any more.
_BEGIN, _END = _FUNCTION(_begin), _FUNCTION(_end)
