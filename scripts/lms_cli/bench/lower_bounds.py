"""What no engine can beat in a cell, from a recorded trace: docs/traces.md says how it is found."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lms_cli import paths
from lms_cli.bench import optimum
from lms_cli.errors import LmsError, OutOfMemoryError

if TYPE_CHECKING:
    from lms_cli.environments.lms_environment import Environment
    from lms_cli.trace.reader import Trace


@dataclass(frozen=True)
class Bound:
    """Of one iteration; times in virtual nanoseconds."""

    step_ns: float  # the reference bound
    floor_ns: float  # the larger of that and of what program order forbids
    h2d_bytes: float  # moved by farthest-next-use eviction
    d2h_bytes: float
    replay_ns: float | None = None  # of LMS on the trace, without PyTorch; None: no memory
    # Of the linear programme, and of the same if nothing is made again; None: not known.
    optimum_ns: float | None = None
    copying_ns: float | None = None


def bound(trace: Trace, capacity: int, card: dict[str, Any], host: int = 0, disk: int = 0) -> Bound:
    """The bound of a traced workload on a card.

    Args:
        trace: recorded where everything fits.
        capacity: bytes of device memory.
        card: the entry of cards.json; its page-locked bandwidths count.
        host: bytes of the host's memory; 0: enough.
        disk: bytes on a disk; 0: there is none.

    Raises:
        LmsError: the replay cannot be built.
    """
    from lms_cli.trace import replaying

    machine = replace(replaying.machine_of(card), capacity=capacity, host=host, disk=disk)
    replay_ns = None
    found: replaying.Bounds
    try:
        found = replayed = replaying.replay(trace, machine, "planned", recompute=False)
        replay_ns = 1e3 * replayed.time_us / replayed.steps
    except OutOfMemoryError:
        found = replaying.bounds(trace, machine)
    return Bound(
        1e3 * found.bound_us / found.steps,
        1e3 * found.floor_us / found.steps,
        found.bound_in_bytes / found.steps,
        found.bound_out_bytes / found.steps,
        replay_ns,
    )


Optimum = tuple[float | None, float | None]  # Bound.optimum_ns and Bound.copying_ns


def optima(
    environment: Environment, trace: Path, capacities: Iterable[int], card: dict[str, Any]
) -> dict[int, Optimum]:
    """The optimum of a traced workload on a card, for each capacity in bytes.

    Raises:
        LmsError: SciPy is missing in the environment, or a programme was not solved.
    """
    asked = {"trace": str(trace), "capacities": list(capacities), **card["page_locked"]}
    done = subprocess.run(
        [str(environment.python), "-m", optimum.__name__],
        input=json.dumps(asked),
        env=os.environ | {"PYTHONPATH": str(paths.SCRIPT.parent)},
        capture_output=True,
        text=True,
    )
    if done.returncode == optimum.NO_SCIPY:
        raise LmsError(
            f"there is no SciPy in {environment.folder}",
            f"Install it there, `{environment.python} -m pip install scipy`, or leave "
            "--environment out: the environments that `lms` makes have it.",
        )
    if done.returncode != 0:
        raise LmsError(f"the optimum was not found:\n{done.stderr.strip()}")
    found = zip(asked["capacities"], json.loads(done.stdout))
    return {capacity: (_ns(times[0]), _ns(times[1])) for capacity, times in found}


def _ns(microseconds: float | None) -> float | None:
    return None if microseconds is None else 1e3 * microseconds
