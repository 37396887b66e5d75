"""What a trace calls its operators and storages; the replay itself goes by numbers."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lms_cli.timeline.recorded import Recorded

UNSAID = "other"  # the kind of all storages in a recorded trace


@dataclass
class Storage:
    """A storage of a trace; lines are those of the trace's file, from 1 on."""

    identity: int
    bytes: int
    kind: str
    born: int
    freed: int | None = None
    uses: list[int] = field(default_factory=list)  # lines of operators, in order

    def next_use(self, line: int) -> int | None:
        """Line of the first operator after a line that uses it."""
        place = bisect_right(self.uses, line)
        return self.uses[place] if place < len(self.uses) else None


@dataclass
class Operator:
    """An operator of a trace: its name, and the numbers of storages."""

    name: str
    reads: list[int]
    writes: list[int]


@dataclass
class Names:
    """All of a trace that has been checked."""

    storages: list[Storage]  # by number
    operators: dict[int, Operator]  # by line
    lines: int


def read(path: Path) -> Names:
    """Read a trace that `reader.read` has accepted."""
    names = Names([], {}, 0)
    live: dict[int, int] = {}
    with path.open(encoding="utf-8") as stream:
        for line, text in enumerate(stream, start=1):
            _event(names, live, line, json.loads(text))
    return names


def _event(names: Names, live: dict[int, int], line: int, row: dict[str, Any]) -> None:
    names.lines = line
    if "op" in row:
        reads = [live[identity] for identity in row["reads"]]
        writes = [live[identity] for identity in row["writes"]]
        names.operators[line] = Operator(row["op"], reads, writes)
        for number in {*reads, *writes}:
            names.storages[number].uses.append(line)
    elif "alloc" in row:
        live[row["alloc"]] = len(names.storages)
        names.storages.append(Storage(row["alloc"], row["bytes"], row["kind"], line))
    elif "free" in row:
        names.storages[live.pop(row["free"])].freed = line


def infer_kinds(names: Names, step: Recorded) -> None:
    """Give storages that a step uses a kind where the trace does not say one.

    What outlives the step is a parameter, or the optimizer's if nothing uses it but operators that
    change such storages in place. What else these operators use is a gradient. What one operator
    alone uses is workspace, the rest are activations.
    """
    lines = [ran.line for ran in step.operators if ran.made < 0]
    first, last = min(lines, default=1), max(lines, default=0)
    used: dict[int, set[int]] = {}
    for line, operator in names.operators.items():
        if first <= line <= last:
            for number in {*operator.reads, *operator.writes}:
                used.setdefault(number, set()).add(line)
    whole = first <= min(names.operators, default=first)
    lasting = {number for number in used if _outlives(names.storages[number], first, last, whole)}
    updates = {
        line
        for number in lasting
        for line in used[number]
        if number in names.operators[line].writes and line > names.storages[number].uses[0]
    }
    for number, users in used.items():
        storage = names.storages[number]
        if storage.kind != UNSAID:
            continue
        if number in lasting:
            storage.kind = "optimizer" if users <= updates else "parameter"
        elif not users.isdisjoint(updates):
            storage.kind = "gradient"
        else:
            storage.kind = "workspace" if len(storage.uses) == 1 else "activation"


def _outlives(storage: Storage, first: int, last: int, whole: bool) -> bool:
    return (whole or storage.born < first) and (storage.freed is None or storage.freed > last)
