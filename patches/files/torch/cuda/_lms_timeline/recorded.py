"""What happened on a device in a step; build/replay/timeline.h says more of what it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CAUSES = ("a page-in", "a late page-in", "memory", "the host")  # of waits
IN, OUT, ASIDE = 0, 1, 2  # directions of copies


@dataclass(frozen=True)
class Ran:
    """An operator, nanoseconds from the step's beginning; `line`: in the trace."""

    line: int
    begin: int
    end: int
    made: int  # again, for the bytes of this storage; -1: it is the program's
    stream: int = 0


@dataclass(frozen=True)
class Wait:
    """A compute stream stood still."""

    cause: int  # of CAUSES
    begin: int
    end: int
    copy: int  # number of the copy that was waited for; -1: of none
    before: int  # number of the operator that came next
    stream: int = 0


@dataclass(frozen=True)
class Copy:
    """Bytes went somewhere."""

    number: int
    direction: int
    storage: int
    begin: int
    end: int
    is_ahead: bool  # of the bytes' use
    leaves: bool  # the device; else the bytes are on both from now on
    room: int  # bytes of memory that an operator wanted; 0: the plan wanted it
    used_for: int  # number of the operator that was next then; -1: of the step before


@dataclass(frozen=True)
class Transfer:
    """Bytes went between the host's memory and a disk."""

    is_write: bool  # to the disk
    storage: int
    begin: int
    end: int


@dataclass(frozen=True)
class Drop:
    """Bytes went without a copy, to be made again."""

    storage: int
    time: int
    room: int
    used_for: int


@dataclass(frozen=True)
class Stay:
    """A storage had memory."""

    storage: int
    begin: int
    end: int


@dataclass(frozen=True)
class Recorded:
    """One step."""

    step: int
    steps: int
    ns: int
    operators: Sequence[Ran]
    waits: Sequence[Wait]
    copies: Sequence[Copy]
    disk: Sequence[Transfer]
    drops: Sequence[Drop]
    device: Sequence[Stay]
    host: Sequence[Stay]

    @property
    def events(self) -> int:
        """How many a timeline shows."""
        kinds = (self.operators, self.waits, self.copies, self.disk, self.drops)
        return sum(map(len, kinds))


def parse(row: dict[str, Any]) -> Recorded:
    """From what the replay prints as `timeline`."""
    return Recorded(
        step=row["step"],
        steps=row["steps"],
        ns=row["ns"],
        operators=[Ran(*numbers) for numbers in row["operators"]],
        waits=[Wait(*numbers) for numbers in row["waits"]],
        copies=[Copy(*numbers) for numbers in row["copies"]],
        disk=[Transfer(bool(is_write), *numbers) for is_write, *numbers in row["disk"]],
        drops=[Drop(*numbers) for numbers in row["drops"]],
        device=[Stay(*numbers) for numbers in row["device"]],
        host=[Stay(*numbers) for numbers in row["host"]],
    )
