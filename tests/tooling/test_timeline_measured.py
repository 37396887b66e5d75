"""What a timeline makes of the lines of a report."""

from __future__ import annotations

import json
from typing import Any

from _lms_timeline import measured, named, story
from _lms_timeline.contents import contents
from _lms_timeline.measured import Known
from _lms_timeline.named import Names
from _lms_timeline.recorded import ASIDE, IN, OUT, Recorded, Stay
from _lms_timeline.story import Story

MS = 1_000_000  # nanoseconds
PAGE = 8 << 20  # bytes

Row = dict[str, Any]


def page(identity: int, on_device: int = 1, host: int = 0) -> Row:
    return {"page": identity, "bytes": PAGE, "on_device": on_device, "host": host}


def alloc(identity: int) -> Row:
    return {"alloc": identity, "bytes": PAGE, "kind": "other"}


def at(begin: float, end: float) -> list[float]:
    """From milliseconds."""
    return [1000 * begin, 1000 * end]


def op(name: str, reads: list[int], writes: list[int], *time: float, stream: int = 0) -> Row:
    uses = {"reads": reads, "writes": writes, "again": []}
    return {"op": name, **uses, "stream": stream, "at": at(*time)}


def copy(kind: str, storage: int, *time: float, ahead: int = 0, host: int = 0) -> Row:
    return {"copy": kind, "storage": storage, "ahead": ahead, "host": host, "at": at(*time)}


def left(identity: int, how: str, room: int = 0) -> Row:
    return {"left": identity, "how": how, "room": room}


def wait(cause: str, number: int, *time: float, stream: int = 0) -> Row:
    return {"wait": cause, "copy": number, "stream": stream, "at": at(*time)}


def made(identity: int, name: str, *time: float) -> Row:
    return {"made": identity, "op": name, "stream": 0, "at": at(*time)}


def end(time: float) -> Row:
    return {"end": 0, "at": at(time, time)}


def read(*rows: Row, known: dict[int, Known] | None = None) -> tuple[Recorded, Names]:
    recorded, names = measured.read("\n".join(map(json.dumps, rows)), known or {})
    named.infer_kinds(names, recorded)
    return recorded, names


def in_ms(stays: Any) -> list[tuple[int, float, float]]:
    return sorted((stay.storage, stay.begin / MS, stay.end / MS) for stay in stays)


# Page 1 leaves for the result of the second operator, and comes back for the third.
SWAP = (
    page(1),
    op("first", [1], [1], 0, 1),
    copy("out", 1, 1, 2, host=4096),
    left(1, "copied", room=PAGE),
    wait("memory", 0, 1, 2),
    alloc(2),
    op("second", [], [2], 1, 3),  # timed with the wait for its result's memory
    {"free": 2},
    copy("in", 1, 3, 4, ahead=1),
    wait("ahead", 1, 3, 4),
    op("third", [1], [], 4, 5),
    {"host_free": 4096},
    end(6),
)


def test_a_swap() -> None:
    recorded, _ = read(*SWAP)
    assert recorded.ns == 6 * MS
    ran = [(one.line, one.begin / MS, one.end / MS) for one in recorded.operators]
    assert ran == [(2, 0, 1), (7, 2, 3), (11, 4, 5)]
    out, back = recorded.copies
    assert (out.direction, out.leaves, out.room, out.used_for) == (OUT, True, PAGE, 1)
    assert (back.direction, back.is_ahead, back.leaves, back.room) == (IN, True, False, 0)
    waits = [(one.cause, one.begin / MS, one.end / MS, one.copy) for one in recorded.waits]
    assert waits == [(2, 1, 2, 0), (1, 3, 4, 1)]
    assert [one.before for one in recorded.waits] == [1, 2]
    assert in_ms(recorded.device) == [(0, 0, 2), (0, 3, 6), (1, 2, 3)]
    assert in_ms(recorded.host) == [(0, 1, 5)]


def test_the_words_of_a_swap() -> None:
    recorded, names = read(*SWAP, known={1: Known("layer.weight", "parameter")})
    told = Story(recorded, names)
    whys = {(event.lane, event.name): event.why for event in told.events()}
    weight = "layer.weight (parameter, 8.0 MiB)"
    assert whys["computes", "second"] == "reads nothing; writes 2 (8.0 MiB)"
    assert whys["device to host", weight].startswith("second wanted 8.0 MiB of memory; used again")
    assert whys["stands still", "third"] == (
        f"waits for a late page-in: for {weight} to come to the device"
    )
    (row,) = told.costliest_storages()
    assert row.cells[:2] == ("layer.weight", "parameter")
    assert row.cells[3] == ""  # what made it was before


# Page 1 is on disk. It comes back by way of the memory that page 2 has on the host.
FROM_DISK = (
    page(1, on_device=0),
    page(2, on_device=0, host=4096),
    {"disk": "write", "storage": 2, "host": 4096, "at": at(0, 2)},
    op("first", [], [], 0, 2),
    {"host_free": 4096},
    {"disk": "read", "storage": 1, "host": 4096, "at": at(2, 5)},
    copy("in", 1, 5, 6, host=4096),
    wait("demand", 0, 5, 6),
    op("second", [1], [], 6, 7),
    {"host_free": 4096},
    end(8),
)


def test_a_disk() -> None:
    recorded, _ = read(*FROM_DISK)
    transfers = [(one.is_write, one.storage, one.begin / MS, one.end / MS) for one in recorded.disk]
    assert transfers == [(True, 1, 0, 2), (False, 0, 2, 5)]
    assert in_ms(recorded.device) == [(0, 5, 8)]
    assert in_ms(recorded.host) == [(0, 2, 7), (1, 0, 2)]
    gaps = [(one.begin / MS, one.end / MS) for one in recorded.waits if one.cause == 3]
    assert gaps == [(2, 5)]
    assert recorded.events == 2 + 2 + 1 + 2


def test_the_words_of_a_disk() -> None:
    recorded, names = read(*FROM_DISK, known={1: Known("layer.weight", "parameter")})
    told = Story(recorded, names)
    assert told.lanes[-2:] == ["disk to host", "host to disk"]
    whys = {(event.lane, event.begin / MS): event.why for event in told.events()}
    weight = "layer.weight (parameter, 8.0 MiB)"
    assert whys["disk to host", 2] == "read into the host's memory; used 1.00 ms later by second"
    assert whys["host to disk", 0].endswith("used by nothing that was recorded")
    assert whys["stands still", 2].endswith(f"the host; meanwhile {weight} was read from disk")
    assert whys["stands still", 5].endswith(f"for {weight} to come to the device")
    shown = contents("disk", [], 0, recorded, names)
    assert ("read from disk", "8.0 MiB in 3.00 ms") in shown["facts"]
    assert ("written to disk", "8.0 MiB in 2.00 ms") in shown["facts"]
    costly = shown["tables"][0]
    assert costly["columns"][-1] == "disk"
    assert [row["cells"][-1] for row in costly["rows"]] == ["3.00 ms", "2.00 ms"]


def test_the_host_waits_for_a_disk() -> None:
    """Within an operator, which needs memory: it has not begun until the host goes on."""
    recorded, names = read(
        page(1, on_device=0, host=4096),
        {"disk": "write", "storage": 1, "host": 4096, "at": at(0, 2)},
        op("first", [], [], 0, 1),
        wait("host", -1, 1, 2),
        op("second", [], [], 1, 3),
        end(3),
    )
    ran = [(one.begin / MS, one.end / MS) for one in recorded.operators]
    assert ran == [(0, 1), (2, 3)]
    assert [(one.cause, one.before) for one in recorded.waits] == [(3, 1)]
    (told,) = (event for event in Story(recorded, names).events() if event.is_wait)
    assert told.kind == "waits for the host"
    assert told.why.endswith("; meanwhile storage 1 (other, 8.0 MiB) was written to disk")


def test_no_disk() -> None:
    recorded, names = read(*SWAP)
    shown = contents("none", [], 0, recorded, names)
    assert "disk" not in json.dumps(shown)


def test_what_leaves_without_a_copy() -> None:
    recorded, _ = read(
        page(1, host=4096),
        page(2),
        op("first", [1, 2], [], 0, 2),
        copy("out", 2, 1, 3, host=8192),
        left(1, "clean"),
        op("second", [], [], 2, 4),
        left(2, "clean"),
        end(4),
    )
    assert [one.leaves for one in recorded.copies] == [False]  # it was copied early, and stayed
    assert in_ms(recorded.device) == [(0, 0, 2), (1, 0, 4)]
    assert in_ms(recorded.host) == [(0, 0, 4), (1, 1, 4)]


def test_what_is_dropped_and_made_again() -> None:
    recorded, names = read(
        op("before", [], [], 0, 1),
        alloc(1),
        op("maker", [], [1], 1, 2),
        left(1, "dropped", room=PAGE),
        op("between", [], [], 2, 3),
        made(1, "maker", 3, 4),
        op("user", [1], [], 4, 5),
        end(5),
    )
    (drop,) = recorded.drops
    assert (drop.storage, drop.time, drop.room, drop.used_for) == (0, 2 * MS, PAGE, 2)
    assert in_ms(recorded.device) == [(0, 1, 2), (0, 3, 5)]
    again = [one for one in recorded.operators if one.made >= 0]
    assert [(one.made, one.begin / MS) for one in again] == [(0, 3)]
    (event,) = (event for event in Story(recorded, names).events() if event.lane == "made again")
    assert event.name == "maker" and event.why.endswith("which was dropped; user needs it")


def test_an_operator_that_waits_in_the_middle_has_begun() -> None:
    recorded, _ = read(wait("memory", -1, 3, 4), op("one", [], [], 1, 5), end(5))
    assert [(ran.begin / MS, ran.end / MS) for ran in recorded.operators] == [(1, 5)]


def test_gaps_are_the_hosts() -> None:
    recorded, _ = read(
        op("first", [], [], 1, 2),
        op("aside", [], [], 2, 9, stream=1),
        op("second", [], [], 2.005, 3),  # too short to count
        wait("ahead", -1, 3, 4),
        op("third", [], [], 5, 6),
        end(9),
    )
    gaps = [(one.begin / MS, one.end / MS, one.before) for one in recorded.waits if one.cause == 3]
    assert gaps == [(0, 1, 0), (4, 5, 3)]


def test_a_wait_of_no_time_is_none() -> None:
    recorded, _ = read(wait("ahead", -1, 0, 0.009), op("one", [], [], 0.009, 1), end(1))
    assert recorded.waits == []


def test_each_stream_has_lanes() -> None:
    recorded, names = read(
        page(1),
        op("first", [], [], 0, 4),
        wait("memory", -1, 1, 2, stream=1),
        op("second", [], [], 2, 3, stream=1),
        copy("move", 1, 0, 1),
        end(4),
    )
    told = Story(recorded, names)
    assert told.lanes[:5] == [
        "computes",
        "computes, stream 2",
        "made again",
        "stands still",
        "stands still, stream 2",
    ]
    lanes = {(event.name, event.lane) for event in told.events() if event.number < 0}
    assert lanes == {
        ("first", "computes"),
        ("second", "computes, stream 2"),
        ("second", "stands still, stream 2"),
    }
    assert recorded.copies[0].direction == ASIDE
    assert in_ms(recorded.device) == [(0, 0, 4)]  # it never left


def test_modules() -> None:
    recorded, names = read(
        {"module": "net"},
        {"module": "net.first"},
        alloc(1),
        op("one", [], [1], 0, 1),
        {"module": "net"},
        {"module": ""},
        op("two", [1], [], 1, 2),
        end(2),
    )
    told = [event.name for event in Story(recorded, names).events()]
    assert told == ["one in net.first", "two"]


def test_kinds_of_a_step_that_makes_its_gradients() -> None:
    """They are there at its end, as parameters and the optimizer's state are, but not before."""
    _, names = read(
        page(1),
        page(2, on_device=0, host=4096),
        alloc(3),
        op("forward", [1], [3], 0, 1),
        alloc(4),
        op("backward", [1, 3], [4], 1, 2),
        {"free": 3},
        op("update", [4], [1, 2], 2, 3),
        end(3),
    )
    kinds = [storage.kind for storage in names.storages]
    assert kinds == ["parameter", "optimizer", "activation", "gradient"]


def test_a_report_of_nothing() -> None:
    recorded, names = read(end(0))
    page_ = contents("nothing", [], 0, recorded, names)
    assert page_["facts"][0] == ("step", story.milliseconds(0))
    assert recorded.device == [] and recorded.host == []


def test_a_storage_that_was_dying_when_the_report_began() -> None:
    recorded, names = read(copy("in", 7, 0, 1), {"free": 7}, op("next", [], [], 1, 2), end(2))
    assert [one.storage for one in recorded.copies] == [0]
    assert (names.storages[0].identity, names.storages[0].bytes) == (7, 0)


def test_what_began_before_the_report() -> None:
    recorded, _ = read(page(1), op("late", [1], [], -2, 1), end(1))
    assert recorded.device == [Stay(0, 0, MS)]
    assert recorded.waits == []
