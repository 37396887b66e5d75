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

    def changed(self, born_before: int, written_before: int) -> int:
        """The last operator up to these that made or wrote it, or -1."""
        births = [self.birth] if self.birth < born_before else []
        return max([-1, *births, *(op for op in self.writes if op < written_before)])


def floor_us(
    rows: list[dict[str, Any]], capacity: int, bandwidth: float, both: float | None = None
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
    total = 0.0
    for begin, end in pairwise(steps[3:]):
        total += max(
            _split(storages.values(), operators, begin, split, end, capacity, bandwidth, both)
            for split in range(begin, end)
        )
    return total


def _split(
    storages: Any,
    operators: list[float],
    begin: int,
    split: int,
    end: int,
    capacity: int,
    bandwidth: float,
    both: float | None,
) -> float:
    def over(chosen: Any) -> float:
        return max(0, sum(storage.bytes for storage in storages if chosen(storage)) - capacity)

    def copies(out: float, into: float) -> float:
        together = (out + into) / (both or 2 * bandwidth)
        return max(out / bandwidth, into / bandwidth, together) * 1e6

    first = copies(
        over(
            lambda s: (
                split in s.uses
                or (s.changed(split + 1, split) >= begin and s.is_used(split, len(operators)))
            )
        ),
        over(lambda s: s.birth < begin and s.is_used(begin, split + 1)),
    )
    second = copies(
        over(lambda s: s.changed(end, end) > split and s.is_used(end, len(operators))),
        over(lambda s: s.birth <= split and s.is_used(split, end)),
    )
    return max(first, sum(operators[begin:split])) + max(second, sum(operators[split:end]))
