"""How much memory storages of each kind have at the times of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .named import Names
from .recorded import Stay

KINDS = ("parameter", "gradient", "optimizer", "activation", "workspace", "input", "other")
MOST = 2000  # points: more than a screen has


@dataclass(frozen=True)
class Memory:
    """Bytes of each kind from each time on, until the next."""

    times: list[int]  # nanoseconds
    bytes: dict[str, list[int]]  # by kind, those that there are


def over_time(stays: Sequence[Stay], names: Names, ns: int) -> Memory:
    """The most that is taken in each of so many parts of the step."""
    changes: list[tuple[int, int, int]] = []  # time, what of KINDS, bytes
    for stay in stays:
        storage = names.storages[stay.storage]
        kind = KINDS.index(storage.kind)
        changes.append((stay.begin, kind, storage.bytes))
        changes.append((stay.end, kind, -storage.bytes))
    changes.sort()
    now = [0] * len(KINDS)
    most: dict[int, list[int]] = {}  # by part of the step: when most was taken,
    last: dict[int, list[int]] = {}  # and at its end
    for index, (time, kind, change) in enumerate(changes):
        now[kind] += change
        # What takes the place of what ends at the same time is not counted beside it.
        is_complete = index + 1 == len(changes) or changes[index + 1][0] > time
        if is_complete and time < ns:
            part = max(time, 0) * MOST // max(ns, 1)
            last[part] = list(now)
            most[part] = max(most.get(part, last[part]), last[part], key=sum)
    points: dict[int, list[int]] = {}
    for part in sorted(most):
        points[part] = most[part]
        points.setdefault(part + 1, last[part])
    series = {
        kind: [taken[number] for taken in points.values()]
        for number, kind in enumerate(KINDS)
        if any(taken[number] for taken in points.values())
    }
    return Memory([part * ns // MOST for part in points], series)
