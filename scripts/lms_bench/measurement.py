"""What iterations of a training take on the simulated device, in its timed mode.

Times are virtual nanoseconds and sizes bytes.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from lms_bench import timeline

GANTT_RESOLUTION = 2000  # parts of an iteration that a picture can show


class Measurement:
    """Times a training whose loop says when an iteration has ended.

    Makes the program wait for nothing until the last iteration that counts has ended.
    """

    def __init__(self, counted: range, record: Path) -> None:
        """Begins.

        Args:
            counted: the iterations whose mean is taken, from 0; at least one comes before.
            record: a file for what the device does in them.
        """
        self._counted, self._record = counted, record
        self._marks = [ready()]
        self._copied: list[tuple[int, int]] = []
        self._engine: list[dict[str, int]] = []

    @property
    def iterations(self) -> int:
        """How many have ended."""
        return len(self._marks) - 1

    @property
    def complete(self) -> bool:
        """Whether all that count have ended."""
        return self.iterations >= self._counted.stop

    def iteration_ended(self) -> None:
        """What the program asks for from now on belongs to the next one."""
        import simcuda

        self._marks.append(ready())
        if self.iterations == self._counted.start:
            simcuda.timeline(self._record)
            self._note()

    def _note(self) -> None:
        self._copied.append(traffic())
        self._engine.append(lms_statistics())

    def figures(self) -> dict[str, Any]:
        """Ends it; means of the iterations that count, and of the program as a whole its peaks."""
        import simcuda
        import torch

        self._note()
        torch.cuda.synchronize()
        simcuda.timeline(None)
        counted = self._marks[self._counted.start :]
        number = len(counted) - 1
        work = timeline.read(self._record, counted[0], counted[-1])
        copied, engine = self._copied, self._engine
        return {
            "steps_ns": [after - before for before, after in pairwise(self._marks)],
            "step_ns": (counted[-1] - counted[0]) / number,
            "h2d_bytes": (copied[1][0] - copied[0][0]) / number,
            "d2h_bytes": (copied[1][1] - copied[0][1]) / number,
            "busy_ns": {engine: timeline.length(spans) / number for engine, spans in work.items()},
            "waiting_ns": waiting(work) / number,
            "hidden": hidden(work),
            **memory(),
            "lms": engine[1],
            "lms_step": {
                name: (value - engine[0][name]) / number
                for name, value in engine[1].items()
                if value != engine[0][name]
            },
            "gantt": gantt(work, *counted[:2]),
            "gantt_ns": counted[1] - counted[0],
        }


def ready() -> int:
    """When all that the program has asked for until now will be done; makes nobody wait."""
    import simcuda

    return max(simcuda.virtual_time(), simcuda.device_time())


def traffic() -> tuple[int, int]:
    """Bytes copied to the device and from it."""
    import simcuda

    stats = simcuda.stats()
    return stats.host_to_device_bytes, stats.device_to_host_bytes


def memory() -> dict[str, int]:
    """Peaks since the process began."""
    import simcuda
    import torch

    stats = simcuda.stats()
    return {
        "capacity_bytes": stats.capacity_bytes,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "peak_page_locked_bytes": stats.peak_page_locked_bytes,
    }


def lms_statistics() -> dict[str, int]:
    """What the engine says of itself, since the process began; empty without it."""
    import torch

    if not hasattr(torch.cuda, "get_enabled_lms") or not torch.cuda.get_enabled_lms():
        return {}
    return {
        name: value
        for name, value in torch.cuda.lms.stats().items()
        if name.startswith(("lms.", "alloc_distribution."))
    }


def hidden(work: dict[str, list[timeline.Span]]) -> float | None:
    """The share of copy time during which the device also computed; None without copies."""
    copies = [*work["h2d"], *work["d2h"]]
    if not copies:
        return None
    under = sum(timeline.overlap(work[engine], work["compute"]) for engine in ("h2d", "d2h"))
    return under / timeline.length(copies)


def waiting(work: dict[str, list[timeline.Span]]) -> int:
    """For how long the device copied and did not compute."""
    copies = timeline.merged([*work["h2d"], *work["d2h"]])
    return timeline.length(copies) - timeline.overlap(copies, work["compute"])


def gantt(
    work: dict[str, list[timeline.Span]], begin: int, end: int
) -> dict[str, list[timeline.Span]]:
    """When each engine worked from `begin` on; gaps too small for a picture are closed."""
    gap = (end - begin) // GANTT_RESOLUTION
    return {
        engine: [
            (start - begin, min(stop, end) - begin)
            for start, stop in timeline.merged(spans, gap)
            if start < end
        ]
        for engine, spans in work.items()
    }
