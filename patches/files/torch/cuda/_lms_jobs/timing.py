"""How long the steps of a job take on its device, by events that are read later."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

import torch

_KEPT = 20  # steps that are remembered


@dataclass(frozen=True)
class _Step:
    """A step that the device may not have ended yet."""

    begin: torch.cuda.Event
    end: torch.cuda.Event
    is_first: bool  # of its turn


class StepTimes:
    """Times of one job's steps. Nothing here waits for a device."""

    def __init__(self) -> None:
        self._pending: deque[_Step] = deque()
        self._first: deque[float] = deque(maxlen=_KEPT)  # seconds, of steps that began a turn
        self._others: deque[float] = deque(maxlen=_KEPT)
        self._known_seconds = 0.0  # of all steps
        # The median of the last steps, since some wait for host memory to be page-locked; of those
        # that began turns only where others are unknown: they bring to the device what other jobs
        # have driven out. None: no step has ended there yet.
        self.step_seconds: float | None = None
        self._last: torch.cuda.Event | None = None  # where the step under way began
        self._is_first = True

    @property
    def device_seconds(self) -> float:
        """Of all steps. Those that the device has not ended count as long as others."""
        return self._known_seconds + len(self._pending) * (self.step_seconds or 0.0)

    def begin_turn(self, stream: torch.cuda.Stream) -> None:
        """The next step begins with what is queued on the stream from now on."""
        self._last = _recorded(stream)
        self._is_first = True

    def end_step(self, stream: torch.cuda.Stream) -> None:
        """A step ends, and the next one begins, with what is queued on the stream."""
        now = _recorded(stream)
        assert self._last is not None
        self._pending.append(_Step(self._last, now, self._is_first))
        self._last = now
        self._is_first = False

    def read(self) -> None:
        """Looks which steps the device has ended."""
        while self._pending and _has_happened(self._pending[0].end):
            step = self._pending.popleft()
            seconds = step.begin.elapsed_time(step.end) / 1000
            self._known_seconds += seconds
            (self._first if step.is_first else self._others).append(seconds)
            known = self._others or self._first
            self.step_seconds = median(known)


def _has_happened(event: torch.cuda.Event) -> bool:
    try:
        return bool(event.query())
    except RuntimeError:
        return False  # an error sticks to the device, and its job hears of it elsewhere


def _recorded(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event
