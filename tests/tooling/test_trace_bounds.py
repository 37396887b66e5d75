"""What no engine can beat: the reference bound and the ordered floor of a trace."""

from __future__ import annotations

import random
from typing import Any

import pytest
from brute_floor import Disk, floor_us
from lms_cli.errors import OutOfMemoryError
from lms_cli.trace import reader
from lms_cli.trace.replaying import bounds, replay
from replays import (
    BANDWIDTH,
    ROOM,
    SWAP,
    TWICE_READ,
    TWICE_WRITTEN,
    Replays,
    below,
    machine,
)
from synthetic_trace import HEADER, PAGE, Transformer, alloc, free, op, write


@pytest.mark.parametrize(
    ("rows", "pages", "in_pages", "out_pages"),
    [
        (SWAP, 2, 0, 0),
        # Page 1 is not used again: it vanishes.
        (SWAP, 1, 1, 1),
        (TWICE_READ, 1, 2, 1),
        (TWICE_WRITTEN, 1, 2, 2),
        # The one that is used last leaves.
        (
            [
                alloc(0),
                alloc(1),
                alloc(2),
                *(op("", d) for d in "012"),
                *(op(d, "") for d in "0121"),
            ],
            2,
            2,
            2,
        ),
    ],
)
def test_bound(
    replays: Replays, rows: list[Any], pages: float, in_pages: int, out_pages: int
) -> None:
    for result in (replays.original(rows, pages), replays.ours(rows, pages)):
        assert (result.bound_in_bytes, result.bound_out_bytes) == (
            in_pages * PAGE,
            out_pages * PAGE,
        )
        copies = 990 * max(in_pages, out_pages)
        assert result.bound_us == pytest.approx(max(result.compute_us, copies))


def test_bounds_need_no_policy(replays: Replays) -> None:
    # One operator uses more than the memory: the original would end with an error.
    rows = [alloc(0), op("", "0"), alloc(1), op("", "1"), alloc(2), op("01", "2")]
    trace = reader.read(write(replays.folder / "trace", [HEADER, *rows]))
    found = bounds(trace, machine(2))
    assert (found.compute_us, found.steps) == (3000, 1)
    with pytest.raises(OutOfMemoryError):
        replay(trace, machine(2), "original", recompute=True)


def test_floor(replays: Replays) -> None:
    # Two of four pages must have left when the last is made, and come back after it was.
    rows = [row for digit in "0123" for row in (alloc(int(digit)), op("", digit, 100))]
    rows += [op(digit, "", 100) for digit in "3210"]
    result = replays.ours(rows, 2)
    assert result.bound_us == pytest.approx(2 * 990)
    assert result.ordered_us == pytest.approx(2 * (4 * PAGE - 2 * ROOM) / BANDWIDTH * 1e6 + 100)
    assert result.floor_us == result.ordered_us < result.time_us


@pytest.mark.parametrize("pages", [16, 30, 50, 70])
@pytest.mark.parametrize("layers", [3, 7])
def test_floor_as_it_is_defined(replays: Replays, pages: int, layers: int) -> None:
    rows = list(Transformer(layers=layers, steps=6).lines())[1:]
    result = replays.ours(rows, pages)
    expected = floor_us(rows, result.machine.capacity, BANDWIDTH)
    assert result.ordered_us == pytest.approx(expected)
    slower = replays.ours(rows, pages, both_bandwidth=BANDWIDTH / 2)
    expected = floor_us(rows, result.machine.capacity, BANDWIDTH, BANDWIDTH / 2)
    assert slower.ordered_us == pytest.approx(expected)
    assert slower.ordered_us > result.ordered_us or pages > 40
    assert result.ordered_us > result.compute_us or pages > 40


@pytest.mark.parametrize(
    ("pages", "host", "read", "write"),
    [(16, 10, 7e9, 6e9), (16, 10, 2e9, 20e9), (20, 6, 7e9, 6e9), (16, 30, 7e9, 6e9)],
)
def test_floor_with_a_disk(
    replays: Replays, pages: int, host: int, read: float, write: float
) -> None:
    rows = list(Transformer(layers=4, steps=6).lines())[1:]
    result = replays.ours(rows, pages, **below(host, read, write))
    disk = Disk(host * PAGE, read, write)
    expected = floor_us(rows, result.machine.capacity, BANDWIDTH, disk=disk)
    assert result.ordered_us == pytest.approx(expected)
    without = floor_us(rows, result.machine.capacity, BANDWIDTH)
    assert result.ordered_us > without or host == 30
    assert result.time_us > result.ordered_us


def test_floor_counts_what_was_written(replays: Replays) -> None:
    # Pages 0 and 1 are written, and have to leave for two new ones; they come back for the next.
    rows: list[Any] = [alloc(0), alloc(1), op("", "01", 100)]
    for step in range(5):
        new = [10 + 2 * step, 11 + 2 * step]
        rows += [{"step": step}, op("", "01", 100), alloc(new[0]), alloc(new[1])]
        rows += [{**op("", "", 100), "writes": new}, {**op("", "", 100), "reads": new}]
        rows += [free(new[0]), free(new[1])]
    result = replays.ours(rows, 2)
    assert result.ordered_us == pytest.approx(floor_us(rows, 2 * ROOM, BANDWIDTH))
    # Out, the operator that writes the new ones, in, and those two operators of the last step: what
    # comes in then and what leaves again may pass each other.
    one = (4 * PAGE - 2 * ROOM) / BANDWIDTH * 1e6
    assert result.ordered_us == pytest.approx(one + 100 + one + 200)


@pytest.mark.parametrize(
    ("pages", "host"), [(40, 0), (60, 0), (90, 0), (150, 0), (40, 20), (60, 30), (90, 10)]
)
@pytest.mark.parametrize("seed", range(3))
def test_no_engine_is_faster_than_the_floor(
    replays: Replays, pages: int, host: int, seed: int
) -> None:
    """Whatever a policy does: here, mostly nonsense."""
    choice = random.Random(seed)
    trace = Transformer(layers=10, steps=5)
    rows = list(trace.lines())[1:]
    operators = [row for row in rows if "op" in row]
    known: set[int] = set()
    actions: list[str] = []
    number = -1
    for row in rows:
        if "free" in row:
            known.discard(row["free"])
        elif "op" in row:
            number += 1
            known.update(row["reads"], row["writes"])
            for _ in range(choice.randrange(3)):
                actions.append(f"{number}{choice.choice('+-')}{choice.choice(sorted(known))}")
    result = replays.ours(rows, pages, *actions, **(below(host) if host else {}))
    assert (result.read_bytes > 0) == (host > 0)
    assert number == len(operators) - 1
    assert result.time_us >= result.ordered_us >= result.compute_us > 0
    assert result.time_us == pytest.approx(result.compute_us + sum(result.stalls_us.values()))
    assert 0 <= result.hidden_us <= result.copying_us
    assert result.in_bytes > 0 or pages >= 130
