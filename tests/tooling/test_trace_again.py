"""Replays in which bytes are made again: tiny traces worked out by hand, and a large one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lms_cli.trace import reader
from lms_cli.trace.replaying import Machine, Result, replay
from replays import Replays, check
from synthetic_trace import PAGE, Transformer, alloc, free, op, write

# With room for three pages memory runs short, in 5,000 us and four operators: one page leaves, for
# which one operator waits. From then on recipes are kept.
SHORT = [
    *(row for i in range(6, 10) for row in (alloc(i), op("", str(i)))),
    *(free(i) for i in range(6, 10)),
]
# Operator 5 makes page 1 from page 0, in half of what a copy takes. It is the page that was used
# least recently when operator 8 needs its memory, after 10,500 us.
DROPPED = [
    *(*SHORT, alloc(0), op("", "0"), alloc(1), op("0", "1", 500, again="1")),
    *(alloc(2), op("", "2"), op("02", ""), alloc(3), op("", "3"), free(3)),
]
DROP = "5x5"  # page 1 is the sixth


def made(result: Result, pages: int, us: float) -> None:
    row = result.report()
    assert (row["made_bytes"], row["making_us"]) == (pages * PAGE, pytest.approx(us))


def test_what_is_dropped_is_made_when_it_is_needed(replays: Replays) -> None:
    rows = [*DROPPED, op("1", "")]
    result = replays.ours(rows, 3, DROP)
    check(result, 9500 + 500 + 1000, 0, 1, memory=1000)
    made(result, 1, 500)


def test_once_made_it_is_there(replays: Replays) -> None:
    result = replays.ours([*DROPPED, op("1", ""), op("1", "")], 3, DROP)
    check(result, 9500 + 500 + 2000, 0, 1, memory=1000)
    made(result, 1, 500)


def test_what_cannot_be_made_again_is_copied(replays: Replays) -> None:
    rows = [{**row, "again": []} if "op" in row else row for row in DROPPED]
    result = replays.ours([*rows, op("1", "")], 3, DROP)
    check(result, 9500 + 1000 + 1000, 1, 2, demanded=1000, memory=1000)
    made(result, 0, 0)


def test_what_takes_longer_than_a_copy_is_copied(replays: Replays) -> None:
    slow = [{**row, "us": 1500} if row == op("0", "1", 500, again="1") else row for row in DROPPED]
    result = replays.ours([*slow, op("1", "")], 3, DROP)
    check(result, 10500 + 1000 + 1000, 1, 2, demanded=1000, memory=1000)
    made(result, 0, 0)


def test_the_policy_original_makes_nothing_again(replays: Replays) -> None:
    made(replays.original([*DROPPED, op("1", "")], 3), 0, 0)


def test_it_is_made_before_its_source_is_written(replays: Replays) -> None:
    result = replays.ours([*DROPPED, op("", "0"), op("", "")], 3, DROP)
    check(result, 9500 + 500 + 2000, 0, 1, memory=1000)
    made(result, 1, 500)


def test_if_it_dies_first_nothing_is_made(replays: Replays) -> None:
    result = replays.ours([*DROPPED, free(1), op("", "0"), op("", "")], 3, DROP)
    check(result, 9500 + 2000, 0, 1, memory=1000)
    made(result, 0, 0)


def test_a_source_that_dies_is_kept_until_then(replays: Replays) -> None:
    # Page 0 is gone by the time that operator 10 takes room.
    rows = [*DROPPED, free(0), op("1", ""), alloc(4), op("", "4")]
    result = replays.ours(rows, 3, DROP)
    check(result, 9500 + 500 + 2000, 0, 1, memory=1000)
    made(result, 1, 500)
    # While page 1 is dropped page 0 takes room, or leaves.
    after = [alloc(4), op("", "4"), alloc(5), op("", "5")]
    assert replays.ours([*DROPPED, free(0), *after], 3, DROP).out_bytes == 2 * PAGE
    assert replays.ours([*DROPPED, free(0), free(1), *after], 3, DROP).out_bytes == PAGE


def test_a_source_on_the_host_comes_back(replays: Replays) -> None:
    # Page 0 leaves after operator 8, until 10,500 us, and is fetched until 11,500 us.
    result = replays.ours([*DROPPED, op("1", "")], 3, DROP, "8-4")
    check(result, 9500 + 2000 + 500 + 1000, 1, 2, demanded=2000, memory=1000)
    made(result, 1, 500)


def chained(last: dict[str, Any]) -> list[Any]:
    """Page 1 is made from page 0 and page 2 from page 1, by operator 6; their memory is needed."""
    return [
        *(*SHORT, alloc(0), op("", "0"), alloc(1), op("0", "1", 500, again="1")),
        *(alloc(2), op("1", "2", 400, again="2"), last, op("0", "")),
        *(alloc(3), op("", "3"), alloc(4), op("0", "4"), free(3), free(4)),
    ]


def test_sources_are_made_first(replays: Replays) -> None:
    result = replays.ours([*chained(op("", "")), op("2", "")], 3, "6x5", "6x6")
    check(result, 10900 + 900 + 1000, 0, 1, memory=1000)
    made(result, 2, 900)


def test_what_is_gone_is_made_for_the_moment(replays: Replays) -> None:
    result = replays.ours([*chained(free(1)), op("2", "")], 3, "6x6")
    check(result, 9900 + 900 + 1000, 0, 1, memory=1000)
    made(result, 1, 900)


def test_what_is_made_for_the_moment_takes_room(replays: Replays) -> None:
    # With page 4 there is room for page 1 or page 2, so that a page leaves in between.
    rows = [row for row in chained(free(1)) if row != free(4)]
    result = replays.ours([*rows, op("2", "")], 3, "6x6")
    check(result, 9900 + 500 + 1000 + 400 + 1000, 0, 2, memory=2000)
    made(result, 1, 900)


def test_what_was_changed_in_place_is_made_twice(replays: Replays) -> None:
    changed = [*DROPPED]
    at = changed.index(op("0", "1", 500, again="1")) + 1
    changed[at:at] = [op("", "1", 300, again="1")]
    result = replays.ours([*changed, op("1", "")], 3, "6x5")
    check(result, 9800 + 800 + 1000, 0, 1, memory=1000)
    made(result, 1, 800)


def test_what_was_before_a_change_has_to_be_known(replays: Replays) -> None:
    changed = [*DROPPED]
    at = changed.index(op("0", "1", 500, again="1")) + 1
    changed[at:at] = [op("", "1", 0), op("", "1", 300, again="1")]
    result = replays.ours([*changed, op("1", "")], 3, "7x5")
    check(result, 9800 + 1000 + 1000, 1, 2, demanded=1000, memory=1000)
    made(result, 0, 0)


def test_other_results_take_room_meanwhile(replays: Replays) -> None:
    # Page 4 is made with page 1, so page 2 leaves first.
    rows = [*DROPPED]
    at = rows.index(op("0", "1", 500, again="1"))
    rows[at : at + 1] = [alloc(4), op("0", "14", 500, again="14"), free(4)]
    result = replays.ours([*rows, op("1", "")], 3, DROP)
    check(result, 9500 + 1000 + 500 + 1000, 0, 2, memory=2000)
    made(result, 1, 500)


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> reader.Trace:
    path = tmp_path_factory.mktemp("again") / "trace"
    model = Transformer(layers=24, steps=20, parameter=4, activation=32, workspace=2, again=True)
    path.write_text(model.text())
    return reader.read(path)


def test_the_engine_learns_to_make_bytes_again(transformer: reader.Trace) -> None:
    machine = Machine(transformer.peak_bytes * 3 // 4, 10e9, 10e9)
    copied = replay(transformer, machine, "planned", recompute=False)
    again = replay(transformer, machine, "planned", recompute=True)
    assert copied.made_bytes == 0 < again.made_bytes
    assert again.making_us > 0
    assert again.time_us / again.steps < 0.9 * copied.time_us / copied.steps


def test_what_cannot_be_made_is_the_same_with_both(tmp_path: Path) -> None:
    trace = reader.read(write(tmp_path / "trace", list(Transformer(steps=8).lines())))
    machine = Machine(trace.peak_bytes // 2, 10e9, 10e9)
    on, off = (
        replay(trace, machine, "planned", recompute=recompute).report()
        for recompute in (True, False)
    )
    assert {**on, "recompute": False} == off
