"""The floor of docs/traces.md, operator by operator and storage by storage."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any


@dataclass
class Storage:
    bytes: int
    birth: int  # the operator after its allocation
    uses: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)

    def is_used(self, begin: int, end: int) -> bool:
        """In [begin, end)."""
        return any(begin <= op < end for op in self.uses)


@dataclass
class Disk:
    """Below a host with so many bytes of memory; bytes per second."""

    host: int
    read: float
    write: float


def floor_us(
    rows: list[dict[str, Any]],
    capacity: int,
    bandwidth: float,
    both: float | None = None,
    disk: Disk | None = None,
) -> float:
    """Of all steps after the third together."""
    storages: dict[int, Storage] = {}
    operators: list[float] = []
    steps: list[int] = []
    for row in rows:
        if "alloc" in row:
            storages[row["alloc"]] = Storage(row["bytes"], len(operators))
        elif "step" in row:
            steps.append(len(operators))
        elif "op" in row:
            for identity in {*row["reads"], *row["writes"]}:
                storages[identity].uses.append(len(operators))
            for identity in row["writes"]:
                storages[identity].writes.append(len(operators))
            operators.append(row["us"])
    steps.append(len(operators))
    first, longest = steps[3], max(end - begin for begin, end in pairwise(steps[3:]))
    times = [0.0]  # of the longest chain from the first operator to each
    for end in range(first + 1, len(operators) + 1):
        times.append(
            max(
                times[begin - first]
                + max(
                    sum(operators[begin:end]),
                    _copies(storages.values(), begin, end, capacity, bandwidth, both, disk),
                )
                for begin in range(max(first, end - longest), end)
            )
        )
    return times[-1]


def _copies(
    storages: Any,
    begin: int,
    end: int,
    capacity: int,
    bandwidth: float,
    both: float | None,
    disk: Disk | None,
) -> float:
    """Of the part [begin, end)."""

    def bytes_of(chosen: Any) -> int:
        return sum(storage.bytes for storage in storages if chosen(storage))

    used = bytes_of(lambda s: s.birth <= begin and s.is_used(begin, end))
    kept = bytes_of(
        lambda s: (
            end in s.uses or (any(begin <= op < end for op in s.writes) and max(s.uses) >= end)
        )
    )
    into, out = max(0, used - capacity), max(0, kept - capacity)
    together = (out + into) / (both or 2 * bandwidth)
    takes = max(out / bandwidth, into / bandwidth, together)
    if disk:
        read, written = max(0, into - disk.host), max(0, out - disk.host)
        takes = max(takes, read / disk.read + written / disk.write)
    return takes * 1e6
