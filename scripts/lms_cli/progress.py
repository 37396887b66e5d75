"""Saying what is going on: on standard error, so that standard output stays a result.

On a terminal each step is a line that moves, and says how far it is and for how long it will go on.
Elsewhere it is a line at the beginning and one at the end.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, Task

T = TypeVar("T")
SOON = 2.0  # seconds: what takes no longer need not be shown


class Advance(Protocol):
    """Says how far a step is."""

    def __call__(self, done: int | None = None, total: int | None = None) -> None:
        """One part more is done; or as many as given, of as many as given."""


@contextmanager
def step(doing: str, total: int | None = None, *, brief: bool = False) -> Iterator[Advance]:
    """Show a long step while it runs, and how long it took when it is done.

    Args:
        doing: what is being done.
        total: how many parts it has, if that is known.
        brief: it mostly is short: say nothing before it has taken `SOON` seconds.

    Yields:
        What to call when a part is done.
    """
    shown = _Step(doing, total)
    late = threading.Timer(SOON if brief else 0, shown.show)
    if brief:
        late.daemon = True
        late.start()
    else:
        shown.show()
    try:
        yield shown.advance
    except BaseException:
        late.cancel()
        shown.close()
        raise
    late.cancel()
    if shown.close():
        note(f"{doing}: done in {time.monotonic() - shown.start:.1f} s")


def each(doing: str, items: Sequence[T], *, brief: bool = False) -> Iterator[T]:
    """The items, one after the other, as the parts of a step."""
    with step(doing, len(items), brief=brief) as advance:
        for item in items:
            yield item
            advance()


def note(text: str) -> None:
    """Say one line."""
    print(f"lms: {text}", file=sys.stderr, flush=True)


def left(done: int, total: int, then: float, now: float) -> float | None:
    """Seconds until the end, if parts take as long as those before; None if none is done.

    Args:
        done: how many parts are.
        total: how many there are.
        then: seconds after the beginning at which the last of them was done.
        now: seconds after the beginning.
    """
    return max(0.0, then * total / done - now) if done else None


def clock(seconds: float) -> str:
    """As minutes and seconds."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class _Step:
    """One step; another thread may show it."""

    _lock = threading.RLock()
    _lines: Progress | None = None  # of all steps that are shown on the terminal
    _count = 0  # how many they are

    def __init__(self, doing: str, total: int | None) -> None:
        self.doing, self.total = doing, total
        self.start = time.monotonic()
        self._done, self._then = 0, 0.0
        self._task: Any = None  # the line of the terminal
        self._shown = self._closed = False

    def show(self) -> None:
        """Begin to show it, unless it is over."""
        with _Step._lock:
            if self._closed:
                return
            self._shown = True
            if not _is_terminal():
                note(f"{self.doing} ...")
                return
            if _Step._lines is None:
                _Step._lines = _lines()
                _Step._lines.start()
            _Step._count += 1
            self._task = _Step._lines.add_task(self.doing, step=self)

    def advance(self, done: int | None = None, total: int | None = None) -> None:
        """One part more is done; or as many as given, of as many as given."""
        with _Step._lock:
            self._done = self._done + 1 if done is None else done
            self.total = self.total if total is None else total
            self._then = time.monotonic() - self.start

    def close(self) -> bool:
        """It is over; return whether it was shown."""
        with _Step._lock:
            self._closed = True
            if self._task is not None and _Step._lines is not None:
                _Step._lines.remove_task(self._task)
                _Step._count -= 1
                if _Step._count == 0:
                    _Step._lines.stop()
                    _Step._lines = None
            return self._shown

    def how_far(self) -> str:
        """As the end of its line."""
        now = time.monotonic() - self.start
        words = [] if self.total is None else [f"{self._done} of {self.total}"]
        words.append(clock(now))
        if self.total is not None:
            rest = left(self._done, self.total, self._then, now)
            words += [] if rest is None else [f"about {clock(rest)} left"]
        return ", ".join(words)


def _is_terminal() -> bool:
    """Whether lines can move on standard error; not before the command has its tools."""
    try:
        import rich.console
    except ImportError:
        return False
    return rich.console.Console(stderr=True).is_terminal


def _lines() -> Progress:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, SpinnerColumn
    from rich.text import Text

    class Line(ProgressColumn):
        max_refresh = 0.5  # seconds

        def render(self, task: Task) -> Text:
            return Text(f"{task.description} ... {task.fields['step'].how_far()}")

    return Progress(
        SpinnerColumn(),
        Line(),
        console=Console(stderr=True, highlight=False),
        transient=True,
        # What a result is written to must not be drawn around if it is no terminal.
        redirect_stdout=sys.stdout.isatty(),
    )
