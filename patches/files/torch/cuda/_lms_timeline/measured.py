"""What happened on a device, from what its engine told: Note [Recording a report] in LMSTrace.h."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .named import Names, Operator, Storage
from .recorded import ASIDE, IN, OUT, Copy, Drop, Ran, Recorded, Stay, Transfer, Wait

SHORTEST = 10_000  # nanoseconds of a wait: less is what it takes to launch something
DIRECTIONS = {"in": IN, "out": OUT, "move": ASIDE}
HOST = 3  # of recorded.CAUSES
CAUSES = {"demand": 0, "ahead": 1, "memory": 2, "host": HOST}


@dataclass(frozen=True)
class Known:
    """What the program knows of a storage."""

    name: str
    kind: str  # empty: not that


def read(text: str, known: Mapping[int, Known]) -> tuple[Recorded, Names]:
    """Read the lines of a report.

    Args:
        text: the lines.
        known: by the storages' ids.
    """
    reader = _Reader(known)
    for line, row in enumerate(text.splitlines(), start=1):
        reader.read(line, json.loads(row))
    return reader.recorded(), reader.names


@dataclass
class _Reader:
    known: Mapping[int, Known]
    names: Names = field(default_factory=lambda: Names([], {}))
    operators: list[Ran] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    latest_waits: list[Wait] = field(default_factory=list)  # since the last operator
    copies: list[Copy] = field(default_factory=list)
    disk: list[Transfer] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)
    device: list[Stay] = field(default_factory=list)
    host: list[Stay] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)  # of storages, by their ids
    last_out: dict[int, int] = field(default_factory=dict)  # copy of a storage
    here: dict[int, int] = field(default_factory=dict)  # since when a storage is on the device
    away: dict[int, tuple[int, int]] = field(default_factory=dict)  # by address: which, and since
    module: str = ""
    # When the compute streams have come to the line; nanoseconds, as all times.
    now: int = 0

    def read(self, line: int, row: dict[str, Any]) -> None:
        kind = next(iter(row))
        if handle := getattr(self, f"_{kind}", None):
            handle(line, row)

    def recorded(self) -> Recorded:
        """All that has been read, as a step."""
        for storage, begin in self.here.items():
            self.device.append(Stay(storage, begin, self.now))
        for storage, begin in self.away.values():
            self.host.append(Stay(storage, begin, self.now))
        return Recorded(
            step=0,
            steps=1,
            ns=self.now,
            operators=self.operators,
            waits=sorted([*self.waits, *self._gaps()], key=lambda wait: wait.begin),
            copies=self.copies,
            disk=self.disk,
            drops=self.drops,
            device=self.device,
            host=self.host,
        )

    # --- storages ---

    def _page(self, line: int, row: dict[str, Any]) -> None:
        number = self._add(row["page"], row["bytes"], line, is_older=True)
        if row["on_device"]:
            self.here[number] = self.now
        if row["host"]:
            self.away[row["host"]] = (number, self.now)

    def _alloc(self, line: int, row: dict[str, Any]) -> None:
        self.here[self._add(row["alloc"], row["bytes"], line, is_older=False)] = self.now

    def _add(self, identity: int, bytes_: int, line: int, is_older: bool) -> int:
        known = self.known.get(identity, Known("", ""))
        number = self.numbers[identity] = len(self.names.storages)
        kind = known.kind or "other"
        self.names.storages.append(
            Storage(identity, bytes_, kind, line, name=known.name, is_older=is_older)
        )
        return number

    def _number(self, identity: int) -> int:
        """Of a storage; one that the report does not list was dying when it began."""
        number = self.numbers.get(identity)
        return self._add(identity, 0, 0, is_older=True) if number is None else number

    def _free(self, line: int, row: dict[str, Any]) -> None:
        number = self._number(row["free"])
        self.names.storages[number].freed = line
        self._leave(number, self.now)

    def _leave(self, number: int, time: int) -> None:
        if (begin := self.here.pop(number, None)) is not None:
            self.device.append(Stay(number, begin, max(begin, time)))

    def _host_free(self, _: int, row: dict[str, Any]) -> None:
        if (stay := self.away.pop(row["host_free"], None)) is not None:
            number, begin = stay
            self.host.append(Stay(number, begin, max(begin, self.now)))

    # --- what the compute streams do ---

    def _op(self, line: int, row: dict[str, Any]) -> None:
        reads = [self._number(identity) for identity in row["reads"]]
        writes = [self._number(identity) for identity in row["writes"]]
        self.names.operators[line] = Operator(row["op"], reads, writes, self.module)
        for number in {*reads, *writes}:
            self.names.storages[number].uses.append(line)
        self._ran(line, row, made=-1)

    def _made(self, line: int, row: dict[str, Any]) -> None:
        number = self._number(row["made"])
        self.names.operators[line] = Operator(row["op"], [], [])
        self._ran(line, row, made=number)
        self.here[number] = self.operators[-1].begin

    def _ran(self, line: int, row: dict[str, Any], made: int) -> None:
        begin, end = times(row)
        stream = row["stream"]
        # It was timed with what it waited for itself before it ran.
        for wait in self.latest_waits:
            if wait.stream == stream and wait.begin - begin < SHORTEST and wait.end <= end:
                begin = max(begin, wait.end)
        self.latest_waits.clear()
        self.operators.append(Ran(line, begin, end, made, stream))
        self.now = max(self.now, end)

    def _wait(self, _: int, row: dict[str, Any]) -> None:
        begin, end = times(row)
        if end - begin >= SHORTEST:
            before = len(self.operators)
            cause = CAUSES[row["wait"]]
            wait = Wait(cause, begin, end, row["copy"], before, row["stream"])
            self.waits.append(wait)
            self.latest_waits.append(wait)
            self.now = max(self.now, end)

    def _module(self, _: int, row: dict[str, Any]) -> None:
        self.module = row["module"]

    def _end(self, _: int, row: dict[str, Any]) -> None:
        self.now = max(self.now, times(row)[1])

    def _gaps(self) -> list[Wait]:
        """When nothing was on the first stream, since the host had launched nothing."""
        busy = [
            *(
                (ran.begin, ran.end, number)
                for number, ran in enumerate(self.operators)
                if ran.stream == 0
            ),
            *((wait.begin, wait.end, wait.before) for wait in self.waits if wait.stream == 0),
        ]
        gaps, done = [], 0
        for begin, end, before in sorted(busy):
            if begin - done >= SHORTEST:
                gaps.append(Wait(HOST, done, begin, -1, before))
            done = max(done, end)
        return gaps

    # --- copies ---

    def _copy(self, _: int, row: dict[str, Any]) -> None:
        begin, end = times(row)
        number = self._number(row["storage"])
        direction = DIRECTIONS[row["copy"]]
        copy = Copy(
            number=len(self.copies),
            direction=direction,
            storage=number,
            begin=begin,
            end=end,
            is_ahead=bool(row["ahead"]),
            leaves=False,
            room=0,
            used_for=len(self.operators),
        )
        self.copies.append(copy)
        if direction == IN:
            self.here[number] = begin
        elif direction == OUT:
            self.away[row["host"]] = (number, begin)
            self.last_out[number] = copy.number

    def _disk(self, _: int, row: dict[str, Any]) -> None:
        begin, end = times(row)
        number = self._number(row["storage"])
        is_write = row["disk"] == "write"
        self.disk.append(Transfer(is_write, number, begin, end))
        if not is_write:
            self.away[row["host"]] = (number, begin)

    def _left(self, _: int, row: dict[str, Any]) -> None:
        number, room = self._number(row["left"]), row["room"]
        time = self.now
        if row["how"] == "dropped":
            self.drops.append(Drop(number, time, room, len(self.operators)))
        elif (copy := self.last_out.get(number)) is not None:
            time = self.copies[copy].end
            if row["how"] == "copied":
                self.copies[copy] = replace(self.copies[copy], leaves=True, room=room)
            else:
                time = max(time, self.now)
        self._leave(number, time)


def times(row: dict[str, Any]) -> tuple[int, int]:
    """Begin and end, nanoseconds from the beginning of the report."""
    begin, end = row["at"]
    return round(1000 * begin), round(1000 * end)
