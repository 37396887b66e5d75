"""What a timeline tells: the replay's record of a step, its words, and Perfetto's format."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from _lms_timeline import memory, named, perfetto, recorded
from _lms_timeline.named import Names
from _lms_timeline.recorded import ASIDE, IN, OUT, Recorded
from _lms_timeline.story import LANES, Story
from lms_cli.trace import reader, replaying
from lms_cli.trace.replaying import Machine, Result
from replays import BANDWIDTH, ROOM, SWAP, below, machine
from synthetic_trace import HEADER, MIB, PAGE, Transformer, alloc, free, op, write

MS = 1_000_000  # nanoseconds
LAST_COUNTS = 4  # steps of a trace whose last one is all that is measured


def record(
    path: Path, on: Machine, policy: str = "planned", step: int | None = None
) -> tuple[Result, Recorded, Names]:
    result, row = replaying.replay_step(reader.read(path), on, policy, step, recompute=True)
    found, names = recorded.parse(row), named.read(path)
    named.infer_kinds(names, found)
    return result, found, names


@pytest.fixture(scope="module")
def swap(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Recorded, Names]:
    """Page 0 leaves for page 1, and comes back for the last operator, for which page 1 leaves."""
    path = write(tmp_path_factory.mktemp("swap") / "trace", [HEADER, *SWAP])
    return record(path, machine(1), "original")


@pytest.fixture(scope="module")
def from_disk(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Recorded, Names]:
    """The host has memory for one page: pages 0 and 1 are written, and page 0 is read again."""
    rows = [row for digit in "012" for row in (alloc(int(digit)), op("", digit))]
    path = tmp_path_factory.mktemp("disk") / "trace"
    write(path, [HEADER, *rows, free(2), op("0", "")])
    return record(path, machine(1, **below(1)), "original")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Recorded, Names]:
    """The last step of a training that copies and makes again, with no kinds in the trace."""
    rows = list(Transformer(layers=8, steps=20, again=True).lines())
    path = tmp_path_factory.mktemp("trained") / "trace"
    write(path, [row | {"kind": "other"} if "alloc" in row else row for row in rows])
    return record(path, Machine(350 * MIB, BANDWIDTH, BANDWIDTH))


def test_each_event_of_a_swap(swap: tuple[Result, Recorded, Names]) -> None:
    _, found, _ = swap
    assert (found.step, found.steps, found.ns) == (0, 1, 6 * MS)
    ran = [(one.line, one.begin / MS, one.end / MS, one.made) for one in found.operators]
    assert ran == [(3, 0, 1, -1), (5, 2, 3, -1), (6, 5, 6, -1)]
    copies = [(one.direction, one.storage, one.begin / MS, one.end / MS) for one in found.copies]
    assert copies == [(OUT, 0, 1, 2), (OUT, 1, 3, 4), (IN, 0, 4, 5)]
    # The first two leave for the memory that the operators after them want.
    assert [(one.room, one.used_for) for one in found.copies] == [(ROOM, 1), (ROOM, 2), (0, 2)]
    waits = [(one.cause, one.begin / MS, one.end / MS, one.before) for one in found.waits]
    assert waits == [(2, 1, 2, 1), (2, 3, 4, 2), (0, 4, 5, 2)]
    assert [one.leaves for one in found.copies] == [True, True, False]
    assert [one.copy for one in found.waits] == [one.number for one in found.copies]
    stays = sorted((one.storage, one.begin / MS, one.end / MS) for one in found.device)
    assert stays == [(0, 0, 2), (0, 4, 6), (1, 2, 4)]
    assert sorted((one.storage, one.begin / MS) for one in found.host) == [(0, 1), (1, 3)]


def test_the_words_of_a_swap(swap: tuple[Result, Recorded, Names]) -> None:
    _, found, names = swap
    told = {(event.lane, event.begin // MS): event for event in Story(found, names).events()}
    assert told["computes", 5].why == "reads 0 (9.4 MiB); writes nothing"
    out = told["device to host", 1]
    assert out.name == "storage 0 (activation, 9.4 MiB)"
    assert "test::to1 wanted 9.4 MiB of memory" in out.why
    assert "used again 4.00 ms later by test::0to" in out.why
    assert told["device to host", 3].why.endswith("used again by nothing that was recorded")
    assert told["host to device", 4].why == "asked for when test::0to needed it"
    wait = told["stands still", 1]
    assert (wait.name, wait.kind) == ("test::to1", "waits for memory")
    assert "for storage 0 (activation, 9.4 MiB) to leave for the host" in wait.why


def test_each_event_of_a_disk(from_disk: tuple[Result, Recorded, Names]) -> None:
    result, found, names = from_disk
    transfers = [(one.is_write, one.storage, one.begin / MS, one.end / MS) for one in found.disk]
    assert transfers == [(True, 0, 2, 3), (True, 1, 4, 5), (False, 0, 5, 6)]
    assert (result.read_bytes, result.written_bytes) == (PAGE, 2 * PAGE)
    # Page 0 has the memory until page 1 needs it, which has it until page 0 is read.
    stays = [(one.storage, one.begin / MS, one.end / MS) for one in found.host]
    assert stays == [(0, 1, 3), (1, 3, 5), (0, 5, 7)]
    told = {(event.lane, event.begin // MS): event for event in Story(found, names).events()}
    assert told["disk to host", 5].kind == "read from disk"
    assert told["disk to host", 5].why.endswith("used 1.00 ms later by test::0to")
    assert told["host to disk", 2].name == "storage 0 (activation, 9.4 MiB)"
    wait = told["stands still", 5].why
    assert wait.endswith("to come to the device, after it was read from disk")


def test_chunks_that_ran_as_one(tmp_path: Path) -> None:
    chunks = [op("0", "1"), op("2", "3")]
    for chunk in chunks:
        chunk["op"] = "aten::_fused_adamw_"
    rows = [*map(alloc, range(4)), op("", "0123"), *chunks, op("3", "")]
    path = write(tmp_path / "trace", [HEADER, *rows])
    _, found, names = record(path, machine(100))
    told = Story(found, names)
    why = [event.why.split("; ") for event in told.events()]
    assert why[1] == [
        "reads 0 (9.4 MiB), 2 (9.4 MiB)",
        "writes 1 (9.4 MiB), 3 (9.4 MiB)",
    ]
    # Storage 0 is used by the first chunk, whose line no recorded operator has.
    assert told._use_after(0, 1 * MS) == "0.00 ms later by aten::_fused_adamw_"
    assert told._use_after(0, 2 * MS) == "by nothing that was recorded"


def test_what_cost_most_of_a_swap(swap: tuple[Result, Recorded, Names]) -> None:
    _, found, names = swap
    told = Story(found, names)
    costly = [(row.cells[0], *row.cells[4:]) for row in told.costliest_storages()]
    assert costly == [
        ("0", "2.00 ms", "0.00 ms", "2.00 ms"),
        ("1", "1.00 ms", "0.00 ms", "1.00 ms"),
    ]
    assert [row.cells[:2] for row in told.longest_waits()] == [
        ("1.00 ms", "1.00 ms"),
        ("1.00 ms", "3.00 ms"),
        ("1.00 ms", "4.00 ms"),
    ]


def test_it_is_the_step_that_the_replay_measures(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(Transformer(layers=8, steps=LAST_COUNTS).text())
    result, found, _ = record(path, Machine(500 * MIB, BANDWIDTH, BANDWIDTH))
    row = result.report()
    assert (row["steps"], found.step) == (1, LAST_COUNTS - 1)
    assert found.ns == pytest.approx(1e3 * row["step_us"], abs=1)
    assert took(found.operators) == pytest.approx(1e3 * row["ideal_us"], abs=len(found.operators))
    waited = [0] * len(recorded.CAUSES)
    for wait in found.waits:
        waited[wait.cause] += wait.end - wait.begin
    stalls = [1e3 * time for time in row["stalls_us"].values()]
    assert waited == pytest.approx(stalls, abs=len(found.waits))
    assert sum(waited) > 0
    copied = [copy for copy in found.copies if copy.direction != ASIDE and copy.begin >= 0]
    assert took(copied) == pytest.approx(1e3 * row["copying_us"], rel=0.05)


def took(spans: Any) -> int:
    return sum(span.end - span.begin for span in spans)


def test_making_again(trained: tuple[Result, Recorded, Names]) -> None:
    result, found, names = trained
    assert result.made_bytes > 0
    made = [ran for ran in found.operators if ran.made >= 0]
    assert made and found.drops
    for ran in made:
        assert ran.made in names.operators[ran.line].writes
    told = [event for event in Story(found, names).events() if event.lane == "made again"]
    assert len(told) == len(made)
    assert "aten::mm_backward needs it" in told[0].why


def test_memory_is_never_more_than_there_is(trained: tuple[Result, Recorded, Names]) -> None:
    result, found, names = trained
    taken = memory.over_time(found.device, names, found.ns)
    sums = [sum(row) for row in zip(*taken.bytes.values())]
    assert 0.9 * result.machine.capacity < max(sums) <= result.machine.capacity
    assert taken.times == sorted(set(taken.times))


@pytest.mark.parametrize("kind", ["parameter", "optimizer", "gradient", "activation", "workspace"])
def test_kinds_that_the_trace_does_not_say(tmp_path: Path, kind: str) -> None:
    said = Transformer(layers=3, steps=LAST_COUNTS)
    path = tmp_path / "trace"
    path.write_text(said.text().replace(f'"{kind}"', '"other"').replace('"input"', '"activation"'))
    _, found, names = record(path, Machine(500 * MIB, BANDWIDTH, BANDWIDTH))
    path.write_text(said.text().replace('"input"', '"activation"'))
    first = min(ran.line for ran in found.operators)
    for storage, true in zip(names.storages, named.read(path).storages):
        if storage.uses and storage.uses[-1] >= first:
            # What the chain rule passes on is called a gradient; no update uses it.
            passed = kind == "gradient" and true.bytes == 16 * MIB
            expected = ("activation", "workspace") if passed else (true.kind,)
            assert storage.kind in expected, storage


def test_memory_between_changes(tmp_path: Path) -> None:
    stays = [recorded.Stay(0, 0, 100_000), recorded.Stay(1, 50_010, 50_020)]
    names = named.read(write(tmp_path / "trace", [HEADER, alloc(0), alloc(1), op("", "01")]))
    taken = memory.over_time(stays, names, 100_000)
    points = list(zip(taken.times, taken.bytes["activation"]))
    assert points == [(0, PAGE), (50, PAGE), (50_000, 2 * PAGE), (50_050, PAGE)]


def test_memory_that_goes_from_one_to_another(tmp_path: Path) -> None:
    rows = [HEADER, alloc(0), alloc(1) | {"kind": "parameter"}, op("", "01")]
    names = named.read(write(tmp_path / "trace", rows))
    stays = [recorded.Stay(0, 0, 50_000), recorded.Stay(1, 50_000, 100_000)]
    taken = memory.over_time(stays, names, 100_000)
    assert [sum(row) for row in zip(*taken.bytes.values())] == [PAGE] * 4


def test_perfetto(swap: tuple[Result, Recorded, Names]) -> None:
    _, found, names = swap
    rows = json.loads(perfetto.text("swap", found, names))["traceEvents"]
    assert {row["ph"] for row in rows} == set("MXCsf")
    slices = [row for row in rows if row["ph"] == "X"]
    assert len(slices) == found.events
    threads = [row["args"]["name"] for row in rows if row["name"] == "thread_name"]
    assert threads == list(LANES)
    # An arrow leads from each copy to who waited for it, and begins and ends on a slice.
    arrows = [row for row in rows if row["ph"] in "sf"]
    assert len(arrows) == 2 * len(found.waits)
    for arrow in arrows:
        assert any((one["tid"], one["ts"]) == (arrow["tid"], arrow["ts"]) for one in slices)
    counted = [row for row in rows if row["ph"] == "C" and row["name"] == "device memory"]
    peak = max(sum(row["args"].values()) for row in counted)
    assert peak == PAGE


def test_perfetto_with_a_disk(from_disk: tuple[Result, Recorded, Names]) -> None:
    _, found, names = from_disk
    rows = json.loads(perfetto.text("disk", found, names))["traceEvents"]
    threads = {row["args"]["name"]: row["tid"] for row in rows if row["name"] == "thread_name"}
    assert list(threads) == [*LANES, "disk to host", "host to disk"]
    slices = [row for row in rows if row["ph"] == "X"]
    assert len(slices) == found.events
    for lane, at in (
        ("disk to host", [(5000, 1000)]),
        ("host to disk", [(2000, 1000), (4000, 1000)]),
    ):
        found_at = [(row["ts"], row["dur"]) for row in slices if row["tid"] == threads[lane]]
        assert found_at == at


def test_any_step_can_be_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(Transformer(layers=3, steps=3).text())
    on = Machine(500 * MIB, BANDWIDTH, BANDWIDTH)
    steps = [record(path, on, step=step)[1] for step in (0, 1, 2, None)]
    assert [found.step for found in steps] == [0, 1, 2, 2]
    lines = [[ran.line for ran in found.operators] for found in steps]
    assert max(lines[0]) < min(lines[1]) and max(lines[1]) < min(lines[2])
    assert dataclasses.asdict(steps[2]) == dataclasses.asdict(steps[3])
