"""What no engine can beat in a cell, from a recorded trace: docs/traces.md says how it is found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lms_cli.errors import OutOfMemoryError

if TYPE_CHECKING:
    from lms_cli.trace.reader import Trace


@dataclass(frozen=True)
class Bound:
    """Of one iteration; times in virtual nanoseconds."""

    step_ns: float  # the reference bound
    floor_ns: float  # the larger of that and of what program order forbids
    h2d_bytes: float  # moved by farthest-next-use eviction
    d2h_bytes: float
    replay_ns: float | None = None  # of LMS on the trace, without PyTorch; None: no memory


def bound(trace: Trace, capacity: int, card: dict[str, Any]) -> Bound:
    """The bound of a traced workload on a card.

    Args:
        trace: recorded where everything fits.
        capacity: bytes of device memory.
        card: the entry of cards.json; its page-locked bandwidths count.

    Raises:
        LmsError: the replay cannot be built.
    """
    from lms_cli.trace import replaying

    machine = replace(replaying.machine_of(card), capacity=capacity)
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
