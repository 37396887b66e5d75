"""Asking tests/programs/serve_programs.py to run a program in one of its modes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from support.child import Child
from support.device import PROGRAMS, Device

PAGE = 4096  # bytes; limits are multiples


@dataclass(frozen=True)
class Measured:
    """What a program returned and the memory it took."""

    result: dict[str, Any]
    memory: dict[str, int]  # bytes; see modes.Memory


class Programs:
    """A process that has imported torch and runs one program after the other."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def run(
        self, program: str, mode: str, limit: int = 0, run: dict[str, Any] | None = None
    ) -> Measured:
        """Runs a program once, see serve_programs.py."""
        request = {"program": program, "mode": mode, "limit": limit, "run": run}
        return Measured(**self._child.ask(request))

    def compare(
        self, program: str, ratio: float, run: dict[str, Any] | None = None
    ) -> dict[str, Measured]:
        """Runs a program with LMS off, on, short of memory and under chaos.

        Asserts that the results are the same, that nothing moves where it fits, and that it keeps
        to a limit of its peak need over `ratio`. Returns the runs by mode.
        """
        runs = {"off": self.run(program, "off", run=run)}
        limit = int(runs["off"].memory["peak_allocated"] / ratio) // PAGE * PAGE
        # "small" last: where memory is too short for the algorithm that it would take, cuDNN takes
        # another one and keeps to it.
        for mode in ("fits", "chaos", "small"):
            runs[mode] = self.run(program, mode, limit, run)
        check_runs(runs, limit)
        return runs


def check_runs(runs: dict[str, Measured], limit: int) -> None:
    """Asserts what `Programs.compare` says of the runs of one program, by mode."""
    expected = runs["off"].result
    differences = {mode: differing(expected, found.result) for mode, found in runs.items()}
    assert differences == {mode: [] for mode in runs}
    fits, small = runs["fits"].memory, runs["small"].memory
    assert (fits["paged_in"], fits["paged_out"]) == (0, 0)
    assert small["peak_reserved"] <= limit
    assert small["paged_in"] > 0
    assert runs["chaos"].memory["paged_in"] > 0


def differing(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Names of what is not the same in two results."""
    names = sorted(expected.keys() | found.keys())
    return [name for name in names if expected.get(name) != found.get(name)]


@contextlib.contextmanager
def programs_on(device: Device, **settings: Any) -> Iterator[Programs]:
    """Programs on a device with kernels that run while the host runs ahead."""
    with device.serve(PROGRAMS / "serve_programs.py", kernels="async", **settings) as child:
        yield Programs(child)
