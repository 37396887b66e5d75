"""What a trace or a report calls its operators and storages; timelines go by numbers."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .recorded import Recorded

UNSAID = "other"  # the kind of all storages in a recorded trace


@dataclass
class Storage:
    """A storage; lines are those of the trace or the report, from 1 on."""

    identity: int
    bytes: int
    kind: str
    born: int
    freed: int | None = None
    uses: list[int] = field(default_factory=list)  # lines of operators, in order
    name: str = ""  # that the program has for it
    is_older: bool = False  # than the report, which does not know what made it

    @property
    def label(self) -> str:
        """What it is called in text."""
        return self.name or f"storage {self.identity}"

    def next_use(self, line: int) -> int | None:
        """Line of the first operator after a line that uses it."""
        place = bisect_right(self.uses, line)
        return self.uses[place] if place < len(self.uses) else None


@dataclass
class Operator:
    """An operator: its name, the numbers of storages, and the module that it ran in."""

    name: str
    reads: list[int]
    writes: list[int]
    module: str = ""

    @property
    def label(self) -> str:
        """What it is called in text."""
        return f"{self.name} in {self.module}" if self.module else self.name


@dataclass
class Names:
    """All that a trace or a report names."""

    storages: list[Storage]  # by number
    operators: dict[int, Operator]  # by line


def read(path: Path) -> Names:
    """Read a trace whose format has been checked."""
    names = Names([], {})
    live: dict[int, int] = {}
    with path.open(encoding="utf-8") as stream:
        for line, text in enumerate(stream, start=1):
            _event(names, live, line, json.loads(text))
    return names


def _event(names: Names, live: dict[int, int], line: int, row: dict[str, Any]) -> None:
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
    is_part = any(storage.is_older for storage in names.storages)
    whole = first <= min(names.operators, default=first) and not is_part
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
