"""Counting a script's training steps from outside, by the hooks that all optimizers call."""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lms_bench.catalogue import FIRST_COUNTED
from lms_bench.measurement import Measurement

from lms_plan.contents import Recording

GRACE = 10.0  # seconds that a script has to end in


class Enough(BaseException):
    """The script has trained for long enough. No `except Exception` is meant to stop it."""


class Watcher:
    """Measures a script's iterations, and ends the script when there were enough.

    An iteration ends with the step of the optimizer that stepped first; others may have steps of
    their own in it, or several.
    """

    def __init__(
        self,
        counted: range,
        record: Path,
        with_contents: bool,
        finish: Callable[[dict[str, Any]], None],
    ) -> None:
        """A watcher.

        Args:
            counted: the iterations that count, from 0.
            record: a file for what the device does in them.
            with_contents: whether to look at what is in memory, before they begin.
            finish: is given the figures when there were enough.
        """
        self._measurement = Measurement(counted, record)
        self._record = record
        self._finish = finish
        self._leader: weakref.ref[torch.optim.Optimizer] | None = None
        self._recording = Recording() if with_contents else None
        self._contents: dict[str, int] = {}

    def attach(self) -> None:
        """Watch all optimizers from now on."""
        from torch.optim import optimizer

        optimizer.register_optimizer_step_pre_hook(self._before)
        optimizer.register_optimizer_step_post_hook(self._after)

    @property
    def steps(self) -> int:
        """How many iterations have ended."""
        return self._measurement.iterations

    def _before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._leader is None or self._leader() is None:
            self._leader = weakref.ref(optimizer)
        if self._recording and self._leader() is optimizer and self.steps == FIRST_COUNTED - 1:
            self._recording.name_what_there_is()

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._leader is None or self._leader() is not optimizer:
            return
        if not self._measurement.complete:
            self._iteration_ended()
        if self._measurement.complete:
            raise Enough

    def _iteration_ended(self) -> None:
        if self._recording and self.steps == FIRST_COUNTED - 1:
            self._contents = self._recording.end()
        self._measurement.iteration_ended()
        if self._recording and self.steps == FIRST_COUNTED - 1:
            self._recording.begin()
        if self._measurement.complete:
            self._finish(self._figures())
            _exit_soon()

    def _figures(self) -> dict[str, Any]:
        import simcuda

        return {
            **self._measurement.figures(),
            "contents": self._contents,
            "unsimulated": simcuda.unsimulated(),
            "convolutions": _convolutions(self._record),
            "deterministic": torch.backends.cudnn.deterministic
            or torch.are_deterministic_algorithms_enabled(),
        }


def _convolutions(record: Path) -> bool:
    """Whether the device computed one."""
    with record.open(encoding="utf-8") as lines:
        return any(json.loads(line)["name"].startswith("aten::convolution") for line in lines)


def _exit_soon() -> None:
    """Whatever the script's threads, handlers and `finally` do."""
    timer = threading.Timer(GRACE, os._exit, [0])
    timer.daemon = True
    timer.start()
