"""The reference bound of a cell: what no engine can beat, from a recorded trace.

The larger of compute time and, for each direction, the bytes that farthest-next-use eviction with
full knowledge of the trace must move, over bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Bound:
    """Of one iteration."""

    step_ns: float  # virtual nanoseconds
    h2d_bytes: float
    d2h_bytes: float


def bound(trace: Path, capacity: int, card: dict[str, Any]) -> Bound | None:
    """The bound of a traced workload on a card.

    Args:
        trace: what the engine wrote: JSON lines in program order.
        capacity: bytes of device memory.
        card: the entry of cards.json; its page-locked bandwidths count.

    Returns:
        None if the engine wrote no trace, or one operator does not fit in the capacity.

    Raises:
        LmsError: the trace breaks its format, or the replay cannot be built.
    """
    from lms_cli import trace_format, trace_replay
    from lms_cli.errors import OutOfMemoryError

    if not trace.is_file() or trace.stat().st_size == 0:
        return None
    locked = card["page_locked"]
    machine = trace_replay.Machine(capacity, locked["h2d"], locked["d2h"])
    try:
        result = trace_replay.replay(trace_format.read(trace), machine, "original")
    except OutOfMemoryError:
        return None
    steps = result.steps
    return Bound(
        1e3 * result.bound_us / steps,
        result.bound_in_bytes / steps,
        result.bound_out_bytes / steps,
    )
