"""What a program leaves running behind its back: clusters start processes that outlive a crash."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

SET_CHILD_SUBREAPER = 36  # of prctl: orphans become children of this process
POLL = 0.05  # seconds


@contextlib.contextmanager
def none_left(seconds: float) -> Iterator[None]:
    """All processes that are started within, by whomever, have ended when the context closes.

    Those that have not so many seconds later are killed.

    Raises:
        AssertionError: there were such, and nothing else was raised within.
    """
    before = _children()
    _adopt_orphans(True)
    try:
        yield
        left = _wait_for_end(before, seconds)
    finally:
        _kill_all(before)
        _adopt_orphans(False)
    assert not left, f"still running {seconds} seconds after the end: {', '.join(left)}"


def _adopt_orphans(yes: bool) -> None:
    assert ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, int(yes), 0, 0, 0) == 0


def _children() -> set[int]:
    """Of this process, those that have ended but for their exit status too."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = stat.read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                found.add(int(stat.parent.name))
    return found


def _running(before: set[int]) -> list[int]:
    """Children that were not there before; the exit status of those that have ended is taken."""
    return [child for child in _children() - before if os.waitpid(child, os.WNOHANG) == (0, 0)]


def _wait_for_end(before: set[int], seconds: float) -> list[str]:
    """The command lines of those that have not ended."""
    end = time.monotonic() + seconds
    while (running := _running(before)) and time.monotonic() < end:
        time.sleep(POLL)
    return [_command(child) for child in running]


def _command(process: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")[:100]
    return f"process {process}"


def _kill_all(before: set[int]) -> None:
    """Their children, too, which are this process's once they have lost their parents."""
    while running := _running(before):
        for child in running:
            os.kill(child, signal.SIGKILL)
        time.sleep(POLL)
