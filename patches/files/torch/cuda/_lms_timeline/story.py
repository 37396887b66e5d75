"""What a timeline shows, in words: lanes of events, and what cost most."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from .named import Names
from .recorded import ASIDE, CAUSES, IN, OUT, Copy, Drop, Ran, Recorded, Transfer, Wait

COMPUTES, AGAIN, STILL = "computes", "made again", "stands still"
HOST = CAUSES[3]
LANES = (COMPUTES, AGAIN, STILL, "host to device", "device to host", "within the device", "dropped")
FROM_DISK, TO_DISK = "disk to host", "host to disk"  # lanes of a step that uses a disk
COPIES = {IN: "host to device", OUT: "device to host", ASIDE: "within the device"}
ENDS = {IN: "come to the device", OUT: "leave for the host", ASIDE: "be moved"}
MOST = 10  # rows of a table
LISTED = 4  # storages of an operator


@dataclass(frozen=True)
class Event:
    """Something on a lane; nanoseconds from the step's beginning."""

    lane: str
    kind: str  # of those that the lane tells apart by colour
    begin: int
    end: int
    name: str  # of the operator or storage
    why: str
    number: int = -1  # of the copy, or of the wait's
    is_wait: bool = False


@dataclass(frozen=True)
class Row:
    """Of a table of what cost most, with the time to look at."""

    cells: tuple[str, ...]
    begin: int
    end: int


class Story:
    """Tells one recorded step with its names."""

    def __init__(self, recorded: Recorded, names: Names) -> None:
        self.recorded = recorded
        self.names = names
        # Of the program's own, in order. Chunks of a list operator may have run as one, which has
        # the line of the last of them.
        own = [ran for ran in recorded.operators if ran.made < 0]
        self.lines = [ran.line for ran in own]
        self.begins = [ran.begin for ran in own]
        self.reached = list(accumulate(self.begins, max))  # those of several streams may overlap
        self.programs = _following(recorded.operators)
        self.copies = {copy.number: copy for copy in recorded.copies}
        self.transfers = sorted(recorded.disk, key=lambda transfer: transfer.end)
        self.transfer_ends = [transfer.end for transfer in self.transfers]

    @property
    def lanes(self) -> list[str]:
        """From above; what a stream does has one for each stream that does it.

        Reads and writes of a disk may overlap, and have a lane each.
        """
        streams = {
            COMPUTES: {ran.stream for ran in self.recorded.operators if ran.made < 0},
            AGAIN: {ran.stream for ran in self.recorded.operators if ran.made >= 0},
            STILL: {wait.stream for wait in self.recorded.waits},
        }
        lanes = [
            of_stream(lane, stream)
            for lane in LANES
            for stream in sorted({0} | streams.get(lane, set()))
        ]
        return [*lanes, FROM_DISK, TO_DISK] if self.recorded.disk else lanes

    # --- events ---

    def events(self) -> list[Event]:
        """Everything, lane by lane."""
        recorded = self.recorded
        return [
            *(self._ran(number, ran) for number, ran in enumerate(recorded.operators)),
            *map(self._wait, recorded.waits),
            *map(self._copy, recorded.copies),
            *map(self._transfer, recorded.disk),
            *map(self._drop, recorded.drops),
        ]

    def _ran(self, number: int, ran: Ran) -> Event:
        operator = self.names.operators[ran.line]
        if ran.made < 0:
            lane, uses = of_stream(COMPUTES, ran.stream), self._uses(ran.line)
            return Event(lane, COMPUTES, ran.begin, ran.end, operator.label, uses)
        bytes_, user = self._storage(ran.made), self._program(number)
        why = f"again, for {bytes_}, which was dropped; {user} needs it"
        lane = of_stream(AGAIN, ran.stream)
        return Event(lane, AGAIN, ran.begin, ran.end, operator.label, why)

    def _wait(self, wait: Wait) -> Event:
        cause = CAUSES[wait.cause]
        copy = self.copies.get(wait.copy)
        why = f"waits for {cause}"
        if copy:
            why += f": for {self._storage(copy.storage)} to {ENDS[copy.direction]}"
        why += self._disk_meanwhile(wait)
        return Event(
            of_stream(STILL, wait.stream),
            f"waits for {cause}",
            wait.begin,
            wait.end,
            self._operator(wait.before),
            why,
            wait.copy,
            is_wait=True,
        )

    def _copy(self, copy: Copy) -> Event:
        lane = COPIES[copy.direction]
        if copy.direction == IN:
            if copy.is_ahead:
                use = self._use_after(copy.storage, copy.end)
                kind, why = "in ahead", f"brought ahead of its use; used {use}"
            else:
                who = self._operator(copy.used_for)
                kind, why = "in on demand", f"asked for when {who} needed it"
        elif copy.direction == OUT:
            kind, why = self._leaves("out", copy.room, copy.used_for)
            if not copy.leaves:
                why = "copied early, and stays: when it has to leave it needs no copy"
            why += f"; used again {self._use_after(copy.storage, copy.begin)}"
        else:
            kind, why = "moved", "moved, so that free memory is in one piece"
        name = self._storage(copy.storage)
        return Event(lane, kind, copy.begin, copy.end, name, why, copy.number)

    def _transfer(self, transfer: Transfer) -> Event:
        name = self._storage(transfer.storage)
        use = f"used {self._use_after(transfer.storage, transfer.end)}"
        if transfer.is_write:
            lane, kind = TO_DISK, "written to disk"
            why = f"written, so that others can have its memory on the host; {use}"
        else:
            lane, kind, why = FROM_DISK, "read from disk", f"read into the host's memory; {use}"
        return Event(lane, kind, transfer.begin, transfer.end, name, why)

    def _drop(self, drop: Drop) -> Event:
        kind, why = self._leaves("dropped", drop.room, drop.used_for)
        why = f"dropped, to be made again: {why}; used again "
        why += self._use_after(drop.storage, drop.time)
        return Event("dropped", kind, drop.time, drop.time, self._storage(drop.storage), why)

    # --- words ---

    def _disk_meanwhile(self, wait: Wait) -> str:
        """What the disk has done, if that is what the wait was for or may have been."""
        first, last = (bisect_right(self.transfer_ends, time) for time in (wait.begin, wait.end))
        done, copy = self.transfers[first:last], self.copies.get(wait.copy)
        if copy and copy.direction == IN and copy.storage in _read(done):
            return ", after it was read from disk"
        if done and CAUSES[wait.cause] == HOST:
            how = "written to" if done[-1].is_write else "read from"
            return f"; meanwhile {self._storage(done[-1].storage)} was {how} disk"
        return ""

    def _leaves(self, how: str, room: int, used_for: int) -> tuple[str, str]:
        if room:
            return f"{how} for room", f"{self._operator(used_for)} wanted {size(room)} of memory"
        return f"{how} by plan", "the plan lets it go early, so that nothing has to wait for it"

    def _storage(self, number: int) -> str:
        storage = self.names.storages[number]
        return f"{storage.label} ({storage.kind}, {size(storage.bytes)})"

    def _uses(self, line: int) -> str:
        """What the operator of a line uses, or the chunks that ran as one up to there."""
        place = bisect_left(self.lines, line)
        after = self.lines[place - 1] if place > 0 else line - 1
        chunks = [
            self.names.operators[chunk]
            for chunk in range(after + 1, line + 1)
            if chunk in self.names.operators
        ]
        reads = [number for chunk in chunks for number in chunk.reads]
        writes = [number for chunk in chunks for number in chunk.writes]
        return f"reads {self._list(reads)}; writes {self._list(writes)}"

    def _list(self, numbers: list[int]) -> str:
        storages = [self.names.storages[number] for number in dict.fromkeys(numbers)]
        words = [
            f"{storage.name or storage.identity} ({size(storage.bytes)})"
            for storage in storages[:LISTED]
        ]
        more = len(storages) - len(words)
        return ", ".join(words) + (f" and {more} more" if more > 0 else "") or "nothing"

    def _operator(self, number: int) -> str:
        if not 0 <= number < len(self.recorded.operators):
            return "the step before" if number < 0 else "the next step"
        ran = self.recorded.operators[number]
        return self.names.operators[ran.line].label + (" (made again)" if ran.made >= 0 else "")

    def _program(self, number: int) -> str:
        """The program's own operator that this one is, or that it is made again for."""
        line = self.programs[number]
        return self.names.operators[line].label if line else "the next step"

    def _use_after(self, number: int, time: int) -> str:
        storage = self.names.storages[number]
        first, last = bisect_left(self.reached, time), self.lines[-1] if self.lines else 0
        before = self.lines[first - 1] if first > 0 else 0
        line = storage.next_use(before)
        if line is not None and line <= last:
            begin = self.begins[bisect_left(self.lines, line)]
            return f"{milliseconds(begin - time)} later by {self.names.operators[line].label}"
        later = storage.next_use(last)
        if later is not None:
            return f"in a later step by {self.names.operators[later].label}"
        return "by nothing that was recorded"

    # --- what cost most ---

    def costliest_storages(self) -> list[Row]:
        """By the time that their copies took, that they were made again in and waited for.

        If a disk was used, by the time of its transfers, too, for which there is one cell more.
        """
        moved: dict[int, int] = defaultdict(int)
        made: dict[int, int] = defaultdict(int)
        waited: dict[int, int] = defaultdict(int)
        disk: dict[int, int] = defaultdict(int)
        spans: dict[int, list[int]] = defaultdict(list)
        for copy in self.recorded.copies:
            if copy.direction != ASIDE:
                moved[copy.storage] += copy.end - copy.begin
                spans[copy.storage] += [copy.begin, copy.end]
        for ran in self.recorded.operators:
            if ran.made >= 0:
                made[ran.made] += ran.end - ran.begin
                spans[ran.made] += [ran.begin, ran.end]
        for transfer in self.recorded.disk:
            disk[transfer.storage] += transfer.end - transfer.begin
            spans[transfer.storage] += [transfer.begin, transfer.end]
        for wait in self.recorded.waits:
            if copy_of := self.copies.get(wait.copy):
                waited[copy_of.storage] += wait.end - wait.begin
        shares = [moved, made, waited, *([disk] if self.recorded.disk else [])]
        times = {number: [share[number] for share in shares] for number in spans}
        return [
            self._storage_row(number, times[number], spans[number])
            for number in sorted(spans, key=lambda number: (-sum(times[number]), number))[:MOST]
        ]

    def _storage_row(self, number: int, times: list[int], at: list[int]) -> Row:
        storage = self.names.storages[number]
        is_known = storage.uses and not storage.is_older
        maker = self.names.operators[storage.uses[0]].label if is_known else ""
        cells = (
            *(storage.name or str(storage.identity), storage.kind, size(storage.bytes), maker),
            *map(milliseconds, times),
        )
        return Row(cells, min(at), max(at))

    def longest_waits(self) -> list[Row]:
        """Stalls of the compute stream, those before one operator by one cause joined."""
        joined: dict[tuple[int, int], list[Wait]] = defaultdict(list)
        for wait in self.recorded.waits:
            joined[wait.before, wait.cause].append(wait)
        ranked = sorted(joined.values(), key=lambda waits: (-length(waits), waits[0].begin))
        rows = []
        for waits in ranked[:MOST]:
            longest = self._wait(max(waits, key=lambda wait: wait.end - wait.begin))
            cells = (milliseconds(length(waits)), milliseconds(waits[0].begin), longest.name)
            rows.append(Row((*cells, longest.why), waits[0].begin, waits[-1].end))
        return rows


def of_stream(lane: str, stream: int) -> str:
    """What a lane is called that shows what one stream does."""
    return f"{lane}, stream {stream + 1}" if stream else lane


def _read(transfers: Sequence[Transfer]) -> set[int]:
    """The storages that were read from disk."""
    return {transfer.storage for transfer in transfers if not transfer.is_write}


def _following(operators: Sequence[Ran]) -> list[int]:
    """For each operator, the line of the program's own that it is, or that comes next; or 0."""
    lines, line = [], 0
    for ran in reversed(operators):
        line = ran.line if ran.made < 0 else line
        lines.append(line)
    return lines[::-1]


def length(waits: list[Wait]) -> int:
    """Nanoseconds, all together."""
    return sum(wait.end - wait.begin for wait in waits)


def size(count: int) -> str:
    """Bytes for people."""
    for unit, bytes_ in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= bytes_:
            return f"{count / bytes_:,.1f} {unit}"
    return f"{count} B"


def milliseconds(nanoseconds: int) -> str:
    """A time for people."""
    return f"{nanoseconds / 1e6:,.2f} ms"
