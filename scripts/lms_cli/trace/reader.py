"""Reading traces: JSON lines in program order, checked, and packed for the replay.

docs/traces.md describes the format to users, build/replay/trace.h the packed words.
"""

from __future__ import annotations

import hashlib
import json
import math
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from lms_cli.errors import TraceError

VERSION = 2
WITHOUT_AGAIN = 1  # the version before: nothing can be made again
KINDS = ("parameter", "gradient", "optimizer", "activation", "workspace", "input", "other")
LARGEST = 1 << 56  # bytes or picoseconds: more would overflow a sum
PICOSECONDS = 1e6  # in a microsecond

# What the engine runs chunk by chunk, as LMSOperatorLists.cpp knows it.
LIST_OPERATORS = ("aten::_foreach_", "aten::_fused_", "aten::_amp_foreach_")

ALLOC, FREE, STEP, OPERATOR = 1, 2, 3, 4  # EventKind of build/replay/trace.h
WRITTEN, AGAIN = 1, 2  # of what an operator uses; packed as FLAGS * number + flags
FLAGS = 4


@dataclass
class Trace:
    """A trace that keeps to the format."""

    name: str
    card: str  # empty: not said
    words: array[int]  # packed
    operators: int = 0
    steps: int = 0  # that it marks
    peak_bytes: int = 0  # the most that was allocated at once

    @property
    def has_steps(self) -> bool:
        """Whether it marks any."""
        return self.steps > 0


class _BadLineError(Exception):
    """What is wrong with a line."""


def read(path: Path) -> Trace:
    """Read and check a trace.

    Raises:
        TraceError: it cannot be read, or breaks the format; with the line's number.
    """
    try:
        with path.open("rb") as stream:
            return _Reader(path, stream).read()
    except OSError as error:
        raise TraceError(f"cannot read the trace: {error}") from error


@dataclass
class _Reader:
    """Reads one trace, event by event."""

    path: Path
    stream: BinaryIO
    line: int = 0
    version: int = VERSION
    live: dict[int, int] = field(default_factory=dict)  # number of each id that is allocated
    freed: set[int] = field(default_factory=set)
    sizes: list[int] = field(default_factory=list)  # bytes of each storage, by number
    names: dict[str, int] = field(default_factory=dict)  # hashes of the operators'
    last_operator: str = ""  # if nothing but allocations came since
    taken: int = 0  # bytes that are allocated
    computing: int = 0  # picoseconds
    trace: Trace = field(default_factory=lambda: Trace("", "", array("q")))

    def read(self) -> Trace:
        rows = self.rows()
        try:
            self.header(next(rows, None))
            for row in rows:
                self.event(row)
        except _BadLineError as error:
            raise TraceError(f"{self.path}, line {self.line}: {error}", REMEDY) from None
        return self.trace

    def rows(self) -> Iterator[Any]:
        decode = json.JSONDecoder(parse_constant=_no_constant).decode
        for raw in self.stream:
            self.line += 1
            try:
                yield decode(raw.decode("utf-8"))
            except UnicodeDecodeError:
                raise _BadLineError("it is not UTF-8 text") from None
            except (ValueError, RecursionError) as error:
                if not raw.endswith(b"\n"):
                    raise _BadLineError("it is cut off: the trace is incomplete") from None
                raise _BadLineError(f"it is not JSON: {error}") from None

    def header(self, row: Any) -> None:
        if row is None:
            self.line = 1
            raise _BadLineError("the file is empty; a header is expected")
        if not isinstance(row, dict) or "lms_trace" not in row:
            raise _BadLineError(f'a header is expected: {{"lms_trace": {VERSION}, ...}}')
        version = row["lms_trace"]
        if type(version) is not int or version not in (WITHOUT_AGAIN, VERSION):
            known = f"{WITHOUT_AGAIN} and {VERSION} are known here"
            raise _BadLineError(f"version {_shown(version)} of the format; {known}")
        self.version = version
        self.trace.name = _text(row, "name")
        self.trace.card = _text(row, "card") if "card" in row else ""

    def event(self, row: Any) -> None:
        if not isinstance(row, dict):
            raise _BadLineError("a JSON object is expected")
        for key, (fields, parse) in EVENTS.items():
            if key in row:
                if self.version == WITHOUT_AGAIN:
                    fields = fields - {"again"}
                if row.keys() != fields:
                    _explain_fields(key, fields, row)
                parse(self, row)
                return
        raise _BadLineError(f"an event is expected: one of {', '.join(EVENTS)}")

    def alloc(self, row: dict[str, Any]) -> None:
        identity, size = row["alloc"], row["bytes"]
        if type(identity) is not int:
            raise _BadLineError(f"the id {_shown(identity)} is not an integer")
        if identity in self.live:
            raise _BadLineError(f"id {identity} is allocated already")
        if identity in self.freed:
            raise _BadLineError(f"id {identity} was freed; ids are not used again")
        if type(size) is not int or not 0 <= size <= LARGEST:
            raise _BadLineError(f"bytes is {_shown(size)}, not a size")
        if row["kind"] not in KINDS:
            raise _BadLineError(f"kind is {_shown(row['kind'])}; it is one of {', '.join(KINDS)}")
        self.live[identity] = len(self.sizes)
        self.sizes.append(size)
        self.taken += size
        if self.taken > LARGEST:
            raise _BadLineError(f"{self.taken} bytes are allocated, more than any memory has")
        self.trace.peak_bytes = max(self.trace.peak_bytes, self.taken)
        self.trace.words.extend((ALLOC, size))

    def free(self, row: dict[str, Any]) -> None:
        self.last_operator = ""
        number = self.number_of(row["free"])
        del self.live[row["free"]]
        self.freed.add(row["free"])
        self.taken -= self.sizes[number]
        self.trace.words.extend((FREE, number))

    def step(self, row: dict[str, Any]) -> None:
        if type(row["step"]) is not int:
            raise _BadLineError(f"step is {_shown(row['step'])}, not an integer")
        self.last_operator = ""
        self.trace.steps += 1
        self.trace.words.append(STEP)

    def operator(self, row: dict[str, Any]) -> None:
        name, duration, reads, writes = row["op"], row["us"], row["reads"], row["writes"]
        again = row.get("again", [])
        if type(name) is not str:
            raise _BadLineError(f"op is {_shown(name)}, not a name")
        if type(duration) not in (int, float) or not 0 <= duration <= LARGEST / PICOSECONDS:
            raise _BadLineError(f"us is {_shown(duration)}, not a time")
        if any(type(ids) is not list for ids in (reads, writes, again)):
            raise _BadLineError("reads, writes and again are lists of ids")
        picoseconds = round(duration * PICOSECONDS)
        self.computing += picoseconds
        if self.computing > LARGEST:
            raise _BadLineError("the operators take more than 20 hours, the most that is possible")
        uses = {self.number_of(identity): 0 for identity in reads}
        for identity in writes:
            uses[self.number_of(identity)] = WRITTEN
        for identity in again:
            if identity not in writes:
                raise _BadLineError(f"id {_shown(identity)} is in again, but not in writes")
            uses[self.number_of(identity)] = WRITTEN | AGAIN
        if name not in self.names:
            self.names[name] = _hash_of(name)
        words = self.trace.words
        continues = name == self.last_operator and name.startswith(LIST_OPERATORS)
        self.last_operator = name
        words.extend((OPERATOR, self.names[name], picoseconds, int(continues), len(uses)))
        words.extend([FLAGS * number + flags for number, flags in uses.items()])
        self.trace.operators += 1

    def number_of(self, identity: Any) -> int:
        """The number of a storage that is allocated."""
        if type(identity) is not int:
            raise _BadLineError(f"the id {_shown(identity)} is not an integer")
        number = self.live.get(identity)
        if number is None:
            why = "was freed before" if identity in self.freed else "was never allocated"
            raise _BadLineError(f"id {identity} {why}")
        return number


REMEDY = "docs/traces.md describes the format."
EVENTS: dict[str, tuple[set[str], Callable[[_Reader, dict[str, Any]], None]]] = {
    "op": ({"op", "us", "reads", "writes", "again"}, _Reader.operator),
    "alloc": ({"alloc", "bytes", "kind"}, _Reader.alloc),
    "free": ({"free"}, _Reader.free),
    "step": ({"step"}, _Reader.step),
}


def _explain_fields(key: str, fields: set[str], row: dict[str, Any]) -> None:
    """Raise the error for an event without the fields that it must have."""
    if missing := sorted(fields - row.keys()):
        raise _BadLineError(f"{key} without {', '.join(missing)}")
    unknown = ", ".join(sorted(row.keys() - fields))
    raise _BadLineError(f"{key} has no field {unknown}")


def _text(row: dict[str, Any], key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str):
        raise _BadLineError(f"the header's {key} is {_shown(value)}, not a text")
    return value


def _no_constant(name: str) -> float:
    """What JSON does not have: NaN, Infinity. Not a number for every check."""
    del name
    return math.nan


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _hash_of(name: str) -> int:
    """64 bits, the same in every process."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
