"""The shortest step of a tiny program, by trying every schedule in whole units of time.

In a unit an operator runs, or one runs again, and a page passes the link each way. A schedule
repeats after one step. All storages are a page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

UNIT_US = 1000.0
State = tuple[frozenset[int], frozenset[int]]  # pages on the device, and those on the host


@dataclass(frozen=True)
class Operator:
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    again: tuple[int, ...] = ()

    @property
    def uses(self) -> frozenset[int]:
        return frozenset(self.reads + self.writes)


@dataclass(frozen=True)
class Program:
    """What repeats. Storages that are not for ever live from their first use to their last."""

    operators: tuple[Operator, ...]
    forever: frozenset[int]

    def uses_of(self, page: int) -> list[int]:
        return [k for k, operator in enumerate(self.operators) if page in operator.uses]

    def living(self, k: int) -> frozenset[int]:
        """What has contents before operator k."""
        return self.forever | {
            page
            for operator in self.operators
            for page in operator.uses - self.forever
            if self.uses_of(page)[0] < k <= self.uses_of(page)[-1]
        }

    def rows(self, page_bytes: int, steps: int) -> Iterator[dict[str, Any]]:
        """As a trace, each step with ids of its own."""
        for page in sorted(self.forever):
            yield {"alloc": page, "bytes": page_bytes, "kind": "other"}
        for step in range(steps):
            yield {"step": step}

            def name(page: int, step: int = step) -> int:
                return page if page in self.forever else 1000 * (step + 1) + page

            for k, operator in enumerate(self.operators):
                for page in sorted(operator.uses - self.living(k)):
                    yield {"alloc": name(page), "bytes": page_bytes, "kind": "other"}
                fields = ("reads", "writes", "again")
                lists = {key: [name(page) for page in getattr(operator, key)] for key in fields}
                yield {"op": f"test::{k}", "us": UNIT_US, **lists}
                for page in sorted(operator.uses - self.living(k + 1)):
                    yield {"free": name(page)}

    def makers(self, k: int) -> Iterator[Operator]:
        """Those that may run again before operator k, for what they read is what they read."""
        for first in range(k):
            operator = self.operators[first]
            between = self.operators[first:k]
            changed = {page for other in between[1:] for page in other.writes}
            changed |= set(operator.writes)
            if operator.again and not set(operator.reads) & changed:
                yield operator


def least_us(program: Program, pages: int, making: bool) -> float:
    """Of a step; infinite if there is no schedule."""
    living = sorted(program.living(0))
    places = list(product((True, False), repeat=2))
    best = float("inf")
    for chosen in product(places, repeat=len(living)):
        device = frozenset(page for page, (on, _) in zip(living, chosen) if on)
        host = frozenset(page for page, (_, on) in zip(living, chosen) if on)
        if device | host == set(living) and len(device) <= pages:
            best = min(best, _from(program, pages, making, (device, host), best))
    return best * UNIT_US


def _from(program: Program, pages: int, making: bool, start: State, enough: float) -> float:
    """Units from a state to the same, a step later."""
    reached, seen, time = {(0, start)}, {(0, start)}, 0
    while reached and time + 1 < enough:
        time += 1
        reached = {
            following
            for k, state in reached
            for following in _after_unit(program, pages, making, k, state)
        } - seen
        seen |= reached
        if (len(program.operators), start) in reached:
            return time
    return float("inf")


def _after_unit(
    program: Program, pages: int, making: bool, k: int, state: State
) -> Iterator[tuple[int, State]]:
    """Whatever can be after a unit of time, before operator k."""
    device, host = state
    living = program.living(k)
    runs: list[tuple[int, Operator | None]] = [(k, None)]
    if k < len(program.operators):
        runs.append((k + 1, program.operators[k]))
    if making:
        runs += [(k, maker) for maker in program.makers(k)]
    for after, operator in runs:
        needed = frozenset() if operator is None else operator.uses & living
        if after == k and operator is not None:
            needed = frozenset(operator.reads)
            if not needed <= living:
                continue
        if not needed <= device:
            continue
        written = frozenset() if operator is None else frozenset(operator.writes)
        for into in [None, *(host - device)]:
            for out in [None, *(device - host - written)]:
                full = device | written | (frozenset() if into is None else {into})
                if len(full) > pages:
                    continue
                copies = host if out is None else host | {out}
                copies = copies - written if after > k else copies
                yield from _left(program, after, full, copies)


def _left(
    program: Program, k: int, device: frozenset[int], host: frozenset[int]
) -> Iterator[tuple[int, State]]:
    """Any pages may leave; what has ended is nowhere."""
    living = program.living(k)
    device, host = device & living, host & living
    for count in range(len(device) + 1):
        for kept in combinations(sorted(device), count):
            yield k, (frozenset(kept), host)
