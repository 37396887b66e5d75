"""`lms trace replay`: tiny traces with times worked out by hand, and the command."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lms_cli import paths, simulate
from lms_cli.errors import OutOfMemoryError, UsageError
from replays import (
    BANDWIDTH,
    ROOM,
    SWAP,
    TWICE_READ,
    TWICE_WRITTEN,
    Replays,
    below,
    check,
)
from synthetic_trace import HEADER, MIB, PAGE, Transformer, alloc, free, op, write


@pytest.mark.parametrize("policy", ["original", "ours"])
def test_what_fits_moves_nothing(replays: Replays, policy: str) -> None:
    rows = [alloc(0), op("", "0", 500), alloc(1), op("0", "1", 700.5)]
    result = getattr(replays, policy)(rows, 2)
    check(result, 1200.5, 0, 0)
    assert result.report()["share_of_ideal"] == 1
    assert result.report()["hidden_share"] == 1


def test_original_blocks_during_each_copy(replays: Replays) -> None:
    check(replays.original(SWAP, 1), 6000, 1, 2, demanded=1000, memory=2000)


def test_memory_is_waited_for_by_who_gets_it(replays: Replays) -> None:
    # b waits for page 0 to leave; the page-in for page 1 to leave, and c for the page-in.
    check(replays.ours(SWAP, 1), 6000, 1, 2, demanded=1000, memory=2000)


def test_a_clean_page_leaves_for_nothing(replays: Replays) -> None:
    check(replays.ours(TWICE_READ, 1), 8000, 2, 1, demanded=2000, memory=1000)


def test_a_write_makes_dirty(replays: Replays) -> None:
    check(replays.ours(TWICE_WRITTEN, 1), 9000, 2, 2, demanded=2000, memory=2000)


def test_original_knows_no_clean_pages(replays: Replays) -> None:
    check(replays.original(TWICE_READ, 1), 9000, 2, 2, demanded=2000, memory=2000)


def ahead(meanwhile: float) -> list[Any]:
    """Page 0 leaves during operator 1 and can come back during operator 4."""
    return [
        *(alloc(0), op("", "0"), alloc(1), op("", "1", 3000), alloc(2), op("1", "2")),
        *(free(1), op("2", "", 0), op("2", "", meanwhile), op("02", "")),
    ]


@pytest.mark.parametrize(
    ("actions", "meanwhile", "time", "late", "demanded", "hidden"),
    [
        (("0-0", "3+0"), 2000, 8000, 0, 0, 2000),
        (("0-0", "3+0"), 400, 7000, 600, 0, 1400),
        (("0-0",), 400, 7400, 0, 1000, 1000),
    ],
)
def test_copies_hide_behind_operators(
    replays: Replays,
    actions: tuple[str, ...],
    meanwhile: float,
    time: float,
    late: float,
    demanded: float,
    hidden: float,
) -> None:
    result = replays.ours(ahead(meanwhile), 2, *actions)
    check(result, time, 1, 1, late=late, demanded=demanded)
    assert (result.hidden_us, result.copying_us) == (hidden, 2000)


def test_memory_of_a_leaving_page_is_handed_over(replays: Replays) -> None:
    # Page 0 leaves from 1,000 to 2,000 us. Operator 1 has room; 2 waits from 1,500 us on.
    rows = [alloc(0), op("", "0"), alloc(1), op("", "1", 500), alloc(2), op("", "2"), op("0", "")]
    check(replays.ours(rows[:-1], 2, "0-0"), 3000, 0, 1, memory=500)


def test_a_page_freed_while_it_leaves(replays: Replays) -> None:
    # Its memory is still read from, so operator 2 waits just the same.
    rows = [alloc(0), op("", "0"), free(0), alloc(1), op("", "1", 500), alloc(2), op("", "2")]
    check(replays.ours(rows, 2, "0-0"), 3000, 0, 1, memory=500)


def test_a_page_in_that_waits_for_memory_holds_no_operator_up(replays: Replays) -> None:
    # Page 0 leaves until 2,000 us and is fetched at once into the same memory.
    rows = [alloc(0), op("", "0"), alloc(1), op("", "1", 100), op("1", "", 500), op("0", "")]
    check(replays.ours(rows, 2, "0-0", "1+0"), 4000, 1, 1, late=1400)


def test_a_page_freed_while_it_arrives(replays: Replays) -> None:
    # It is fetched from 2,000 to 3,000 us, which operator 3 waits for: the memory is the same.
    rows = [alloc(0), op("", "0"), alloc(1), op("", "1", 1000), free(1), op("", "", 0)]
    rows += [free(0), alloc(2), op("", "2")]
    check(replays.ours(rows, 1, "2+0"), 5000, 1, 1, memory=2000)


def test_copies_of_one_direction_queue(replays: Replays) -> None:
    rows = [alloc(0), alloc(1), op("", "01"), op("", "", 500), alloc(2), alloc(3), op("", "23")]
    # Both leave from 1,000 us on, one after the other; the last operator needs both's memory.
    check(replays.ours(rows, 2, "0-0", "0-1"), 4000, 0, 2, memory=1500)


def test_arguments_stay_while_results_are_placed(replays: Replays) -> None:
    # Page 0 was used least recently, but the operator that allocates page 2 reads it.
    rows = [alloc(0), op("", "0"), alloc(1), op("", "1"), alloc(2), op("0", "2"), op("2", "")]
    check(replays.ours(rows, 2), 5000, 0, 1, memory=1000)


def test_parameters_that_nothing_has_touched_can_leave(replays: Replays) -> None:
    rows = [alloc(0), alloc(1), alloc(2), op("0", ""), op("1", ""), op("2", "")]
    check(replays.original(rows, 2), 8000, 2, 3, demanded=2000, memory=3000)


@pytest.mark.parametrize(
    ("both", "meanwhile", "late"),
    [
        (2 * BANDWIDTH, 0, 1000),
        (BANDWIDTH, 0, 2000),
        (2 * BANDWIDTH, 500, 1000),
        (BANDWIDTH, 500, 1500),  # half speed for 1,000 us, then full speed
    ],
)
def test_directions_slow_each_other_down(
    replays: Replays, both: float, meanwhile: float, late: float
) -> None:
    # Page 1 leaves from 3,000 us on, page 0 comes back from the end of operator 3 on.
    rows = [row for digit in "012" for row in (alloc(int(digit)), op("", digit))]
    rows += [op("2", "", meanwhile), op("0", "")]
    result = replays.ours(rows, 4, "0-0", "2-1", "3+0", both_bandwidth=both)
    check(result, 4000 + meanwhile + late, 1, 2, late=late)


def test_storages_are_moved_aside(replays: Replays) -> None:
    # Page 1 is between two halves that are enough for page 3 together.
    rows = [row for digit in "012" for row in (alloc(int(digit)), op("", digit))]
    rows += [free(0), free(2), alloc(3, 2 * PAGE), op("", "3"), op("1", "")]
    moving = 2 + 2 * PAGE / 1e12 * 1e6
    result = replays.ours(rows, 3)
    check(result, 5000 + moving, 0, 0, memory=moving)
    assert result.moved_bytes == PAGE


def test_the_host_asks_for_operators_one_by_one(replays: Replays) -> None:
    # It has asked for them after 700 and 1,400 us.
    rows = [alloc(0), op("", "0", 500), op("0", "", 500)]
    check(replays.ours(rows, 1, operator_ns=700e3), 1900, 0, 0, host=900)


def test_arguments_in_each_others_way(replays: Replays) -> None:
    # Page 2 is in the middle of the memory, and page 3 wants two thirds of it in one piece.
    rows = [alloc(3, 2 * PAGE), op("", "3"), alloc(0), op("", "0"), alloc(1), op("", "1")]
    rows += [alloc(2), op("", "2"), free(0), free(1), op("23", "")]
    check(replays.ours(rows, 3), 10980, 3, 3, demanded=3990, memory=1990)


THREE = [row for digit in "012" for row in (alloc(int(digit)), op("", digit))]


@pytest.mark.parametrize(
    ("rows", "host", "time", "out_pages", "read", "written", "stalls"),
    [
        # Page 0 is in the only memory of the host, and written while operator 1 runs; page 1 for
        # page 0 to come back, which is read meanwhile and has to make room for page 2.
        ([*THREE, op("0", "")], 1, 11000, 3, 2, 3, {"demanded": 3000, "memory": 4000}),
        # With nothing in its way it is read and copied.
        ([*THREE, free(2), op("0", "")], 1, 8000, 2, 1, 2, {"demanded": 2000, "memory": 2000}),
        ([*THREE, free(2), op("0", "")], 2, 7000, 2, 0, 0, {"demanded": 1000, "memory": 2000}),
    ],
)
def test_what_the_host_has_no_room_for_goes_to_disk(
    replays: Replays,
    rows: list[Any],
    host: int,
    time: float,
    out_pages: int,
    read: int,
    written: int,
    stalls: dict[str, float],
) -> None:
    result = replays.original(rows, 1, **below(host))
    check(result, time, 1, out_pages, **stalls)
    assert (result.read_bytes, result.written_bytes) == (read * PAGE, written * PAGE)


def test_a_slower_disk_is_waited_for(replays: Replays) -> None:
    rows = [*THREE, free(2), op("0", "")]
    slow_reads = replays.original(rows, 1, **below(1, read=9.9e8))
    check(slow_reads, 17000, 1, 2, demanded=11000, memory=2000)


@pytest.mark.parametrize(
    ("rows", "pages", "line", "missing"),
    [
        ([alloc(0), op("", "0"), alloc(1), op("0", "1")], 1, 4, ROOM),
        ([alloc(0), alloc(1), op("", "01")], 1.5, 3, ROOM // 2),
        ([alloc(0, 100), alloc(1, 100), op("", "01")], 600 / ROOM, 3, 1024 - 600),
        # Page 2 is between two halves that would be enough together.
        (
            [
                *(alloc(0), alloc(1), alloc(2), op("", "0"), op("", "1"), op("", "2")),
                *(free(0), free(2), alloc(3, 2 * PAGE), op("1", "3")),
            ],
            3,
            10,
            2 * ROOM - ROOM,
        ),
    ],
)
def test_out_of_memory(
    replays: Replays, rows: list[Any], pages: float, line: int, missing: int
) -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        replays.original(rows, pages)
    message = str(caught.value)
    assert f"out of memory at line {line} of the trace" in message
    said = re.search(r"at least ([\d,]+) are missing", message)
    assert said and abs(int(said[1].replace(",", "")) - missing) <= 512


def test_small_storages_stay_and_take_room(replays: Replays) -> None:
    small = [alloc(9, MIB), op("", "9")]
    check(replays.original(small + SWAP, 1 + MIB / ROOM), 7000, 1, 2, demanded=1000, memory=2000)
    in_turn = [row for identity in range(5) for row in (alloc(identity, MIB), free(identity))]
    assert replays.original(in_turn, 1.5 * MIB / ROOM).in_bytes == 0
    with pytest.raises(OutOfMemoryError):
        replays.original(small + SWAP, 1 + MIB / ROOM - 0.001)


@pytest.mark.parametrize(
    ("steps", "mean", "ideal"), [(3, 6700, 3700), (4, 400, 400), (6, 500, 500)]
)
def test_the_steps_after_the_third_count(
    replays: Replays, steps: int, mean: float, ideal: float
) -> None:
    rows: list[Any] = [*SWAP, free(0), free(1)]
    for step in range(steps):
        rows += [{"step": step}, alloc(2 + step), op("", str(2 + step), 100 * (1 + step))]
        rows += [free(2 + step)]
    if steps == 3:
        rows[-2]["us"] = 400
    row = replays.original(rows, 1).report()
    assert (row["step_us"], row["ideal_us"], row["ordered_us"]) == (mean, ideal, ideal)
    assert row["in_bytes"] == row["bound_in_bytes"] == (PAGE if steps == 3 else 0)


# --- the command ---


def lms(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(paths.SCRIPT), "trace", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


MACHINE = ("--capacity", "0.6G", "--h2d", "15.75G", "--d2h", "12G", "--policy", "original")


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(Transformer().text())
    table = lms("replay", path, *MACHINE)
    assert table.returncode == 0, table.stderr
    assert "synthetic transformer with the policy original" in table.stdout
    done = lms("replay", path, *MACHINE, "--json")
    row = json.loads(done.stdout)
    assert f"{row['step_us'] / 1e3:,.3f} ms" in table.stdout
    assert f"{100 * row['share_of_bound']:.1f} %" in table.stdout
    assert row["bound_us"] < row["floor_us"] < row["step_us"]
    broken = lms("replay", tmp_path / "missing", *MACHINE)
    assert (broken.returncode, "cannot read the trace" in broken.stderr) == (11, True)
    nothing = lms("replay", path, "--h2d", "1G")
    assert (nothing.returncode, "Give --card" in nothing.stderr) == (2, True)
    unknown = lms("replay", path, *MACHINE[:-1], "best")
    assert (unknown.returncode, "there is no policy best" in unknown.stderr) == (2, True)


def test_the_command_for_a_card(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(Transformer().text())
    done = lms("replay", path, "--card", "A100-SXM-40GB", "--capacity", "0.6G", "--json")
    row = json.loads(done.stdout)
    assert (row["capacity"], row["in_bandwidth"], row["both_bandwidth"]) == (
        *(int(0.6 * 2**30), 24.8e9, 42e9),
    )
    assert lms("replay", path, "--card", "Voodoo").returncode == 2


def test_the_command_says_what_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    model = Transformer(layers=24, steps=16, parameter=4, activation=32, workspace=2, again=True)
    path.write_text(model.text())
    machine = ("--capacity", "0.85G", "--h2d", "10G", "--d2h", "10G")
    on, off = (
        json.loads(lms("replay", path, *machine, "--recompute", word, "--json").stdout)
        for word in ("on", "off")
    )
    assert (on["recompute"], off["recompute"]) == (True, False)
    assert on["made_bytes"] > off["made_bytes"] == 0
    table = lms("replay", path, *machine).stdout
    assert f"{on['made_bytes'] / 2**20:,.1f} MiB" in table
    assert f"{on['making_us'] / 1e3:,.3f} ms" in table
    assert lms("replay", path, *machine, "--recompute", "maybe").returncode == 2


def test_the_command_with_a_disk(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(Transformer().text())
    card = ("--card", "RTX-4090-24GB", "--capacity", "0.6G")
    done = lms("replay", path, *card, "--host", "0.3G", "--disk", "800G", "--json")
    row = json.loads(done.stdout)
    assert (row["host"], row["disk"]) == (int(0.3 * 2**30), 800 << 30)
    assert (row["disk_read"], row["disk_write"]) == (7e9, 6e9)  # the card's
    assert row["read_bytes"] > 0 and row["written_bytes"] > 0
    without = json.loads(lms("replay", path, *card, "--json").stdout)
    assert (without["read_bytes"], without["written_bytes"]) == (0, 0)
    assert row["step_us"] > row["floor_us"] > without["floor_us"]
    table = lms("replay", path, *card, "--host", "0.3G", "--disk", "800G").stdout
    for what, moved in (("read from", row["read_bytes"]), ("written to", row["written_bytes"])):
        assert re.search(rf"{what} disk\W+{moved / 2**20:,.1f} MiB", table)
    assert "disk" not in lms("replay", path, *card).stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--host", "0"), "--host 0: LMS cannot do without"),
        (("--host", "much"), "much is not a size"),
        (("--host", "1G", "--disk", "lots"), "lots is not a size"),
        (("--host", "1G", "--disk", "-1"), "-1 is not a size"),
        (("--disk", "1G"), "--disk alone: nothing leaves a host that has enough memory"),
    ],
)
def test_what_is_no_host_and_no_disk(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    done = lms("replay", write(tmp_path / "trace.jsonl", [HEADER, *SWAP]), *MACHINE, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "rate"), [("1000", 1e3), ("15.75G", 15.75e9), ("600MB/s", 6e8), ("1.5 t", 1.5e12)]
)
def test_rates(text: str, rate: float) -> None:
    assert simulate.parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "0", "-1G", "fast", "1GiB", "1G/m"])
def test_no_rates(text: str) -> None:
    with pytest.raises(UsageError, match="is not a bandwidth"):
        simulate.parse_rate(text)


def test_the_header_needs_no_card(tmp_path: Path) -> None:
    header = {"lms_trace": 2, "name": "by hand"}
    done = lms("replay", write(tmp_path / "bare.jsonl", [header, *SWAP]), *MACHINE)
    assert done.returncode == 0, done.stderr


def test_host_times_are_refused(tmp_path: Path) -> None:
    header = {"lms_trace": 2, "name": "by hand", "card": "Simulated CUDA device"}
    path = write(tmp_path / "computed.jsonl", [header, *SWAP])
    done = lms("replay", path, "--card", "A100-SXM-40GB")
    assert done.returncode == 11
    assert "this machine's processor" in done.stderr and "record --card" in done.stderr


def test_the_column_says_what_is_summed_up(tmp_path: Path) -> None:
    whole = lms("replay", write(tmp_path / "whole.jsonl", [HEADER, *SWAP]), *MACHINE)
    assert "whole trace" in whole.stdout and "a step" not in whole.stdout
    rows = [HEADER, {"step": 0}, *SWAP]
    steps = lms("replay", write(tmp_path / "steps.jsonl", rows), *MACHINE)
    assert "a step" in steps.stdout and "whole trace" not in steps.stdout
