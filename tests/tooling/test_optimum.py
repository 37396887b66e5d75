"""The optimum of a step: never above what a schedule reaches, and no lower than it has to be."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest
from brute_step import UNIT_US, Operator, Program, least_us
from lms_cli.bench import lower_bounds, optimum
from lms_cli.bench.optimum import Link
from lms_cli.environments import virtual
from lms_cli.environments.lms_environment import Environment
from lms_cli.errors import LmsError
from lms_cli.trace import reader, steady
from lms_cli.trace.steady import Step
from synthetic_trace import HEADER, PAGE, Transformer, alloc, free, op, write

LINK = Link(*(PAGE * 1e6 / UNIT_US,) * 2, 2 * PAGE * 1e6 / UNIT_US)  # a page in a unit, each way


def step_of(folder: Path, rows: list[Any]) -> Step:
    trace = reader.read(write(folder / "trace", [HEADER, *rows]))
    step = steady.step_of(trace)
    assert step is not None
    return step


def optimum_us(
    folder: Path, program: Program, pages: float, making: bool = True, link: Link = LINK
) -> float:
    step = step_of(folder, list(program.rows(PAGE, 5)))
    found = optimum.optimum_us(step, int(pages * PAGE), link, making)
    assert found is not None
    return found


def program(text: str, forever: str = "") -> Program:
    """From `read>written!again` for each operator."""
    operators = []
    for word in text.split():
        reads, _, rest = word.partition(">")
        writes, _, again = rest.partition("!")
        operators.append(Operator(*(tuple(map(int, digits)) for digits in (reads, writes, again))))
    return Program(tuple(operators), frozenset(map(int, forever)))


# Makes three pages, and uses them from the last to the first. In four pages of memory, two of them
# are away when 3 and 4 are there.
STACK = "9>0!0 9>1!1 9>2!2 9>34 2> 1> 0>"


def random_program(choice: random.Random) -> Program:
    """Four pages for ever, of which one is only read, and one or two for a time."""
    operators = []
    made: list[int] = []
    for k in range(4):
        writes = [choice.choice([1, 2, 3, *made])] if choice.random() < 0.3 else []
        again: list[int] = []
        if k < 2 and choice.random() < 0.7:
            made.append(4 + k)
            writes = made[-1:]
            again = writes if choice.random() < 0.7 else []
        reads = choice.sample(sorted({0, 1, 2, 3, *made} - set(writes)), k=3 - len(writes))
        operators.append(Operator(tuple(reads), tuple(writes), tuple(again)))
    return Program(tuple(operators), frozenset({0, 1, 2, 3}))


@pytest.mark.parametrize("making", [True, False])
@pytest.mark.parametrize("seed", [0, 1, 7, 8, 10])
def test_no_schedule_is_shorter(tmp_path: Path, seed: int, making: bool) -> None:
    tried = random_program(random.Random(seed))
    found = optimum_us(tmp_path, tried, 3, making)
    assert len(tried.operators) * UNIT_US <= found * (1 + 1e-6)
    assert found <= least_us(tried, 3, making) * (1 + 1e-6)


@pytest.mark.parametrize("slow", [1, 4])
@pytest.mark.parametrize(
    ("text", "forever", "moved"),
    [
        ("012> 345>", "012345", 4),  # two of each three come in for their operator
        ("012>012 345>345", "012345", 8),  # and leave, which takes as much of the link
        ("012> 013>", "0123", 0),  # there is room for all
    ],
)
def test_copies(tmp_path: Path, text: str, forever: str, moved: int, slow: int) -> None:
    link = Link(LINK.h2d / slow, LINK.d2h / slow, LINK.h2d / slow)
    found = optimum_us(tmp_path, program(text, forever), 4, link=link)
    assert found == pytest.approx(max(2, slow * moved) * UNIT_US, rel=1e-5)


def test_what_leaves_for_a_peak_comes_back_after_it(tmp_path: Path) -> None:
    slow = Link(LINK.h2d / 4, LINK.d2h / 4, LINK.both / 4)
    # 8 units out, then 8 in, and the last operator.
    found = optimum_us(tmp_path, program(STACK, "9"), 4, False, slow)
    assert found == pytest.approx(17 * UNIT_US, rel=1e-5)


def test_what_the_link_has_no_time_for_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimum, "RATES", 1.0001)
    slow = Link(LINK.h2d / 4, LINK.d2h / 4, LINK.both / 4)
    # Three quarters of a page leave in the three units before the peak, the rest is made again.
    found = optimum_us(tmp_path, program(STACK, "9"), 4, link=slow)
    assert found == pytest.approx((7 + 1.25) * UNIT_US, rel=1e-4)


@pytest.mark.parametrize("making", [True, False])
def test_enough_memory_leaves_the_compute_time(tmp_path: Path, making: bool) -> None:
    step = step_of(tmp_path, list(Transformer(layers=5, steps=6).lines())[1:])
    most = max(optimum.alive(step))
    compute = sum(step.durations)
    assert optimum.optimum_us(step, most, LINK, making) == pytest.approx(compute, rel=1e-6)
    less = optimum.optimum_us(step, most // 3, LINK, making)
    assert less is not None and less > 1.1 * compute


def test_more_parts_give_no_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = step_of(tmp_path, list(Transformer(layers=7, steps=6).lines())[1:])
    capacity = max(optimum.alive(step)) // 2
    found = []
    for parts in (1, 8, 64):
        monkeypatch.setattr(optimum, "PARTS", parts)
        found.append(optimum.optimum_us(step, capacity, LINK) or 0)
    assert found == sorted(found) and found[0] < 0.9 * found[-1]


def test_an_operator_that_does_not_fit(tmp_path: Path) -> None:
    step = step_of(tmp_path, list(program("01> 2>", "012").rows(PAGE, 5)))
    assert optimum.optimum_us(step, 2 * PAGE - 1, LINK) is None


def test_values_of_a_step(tmp_path: Path) -> None:
    # 0 is written every second operator of its uses, 1 never, 2 lives into the next step.
    rows: list[Any] = [alloc(0), alloc(1)]
    for step in range(5):
        new = 10 + step
        rows += [{"step": step}, op("01", ""), op("", "0")]
        if step > 0:
            rows += [{**op("", ""), "reads": [new - 1]}, free(new - 1)]
        else:
            rows += [op("", "")]
        rows += [alloc(new), {**op("", ""), "writes": [new]}]
    found = {(value.written, tuple(value.idle)) for value in step_of(tmp_path, rows).values}
    assert found == {(1, ((1, 4), (4, 5))), (None, ((0, 4),)), (3, ((3, 6),))}


@pytest.mark.parametrize("change", ["size", "name", "fewer", "one step"])
def test_steps_that_are_not_alike(tmp_path: Path, change: str) -> None:
    rows = list(program("0> 1> 2>", "012").rows(PAGE, 5))
    if change == "size":
        rows[-1] = {**rows[-1], "reads": [0, 1]}
    elif change == "name":
        rows[-1] = {**rows[-1], "op": "test::other"}
    elif change == "fewer":
        rows.pop()
    else:
        rows = [row for row in rows if row.get("step", 0) == 0]
    trace = reader.read(write(tmp_path / "trace", [HEADER, *rows]))
    assert steady.step_of(trace) is None


def test_as_a_program(tmp_path: Path) -> None:
    rows = program(STACK, "9").rows(PAGE, 5)
    path = write(tmp_path / "trace", [HEADER, *rows])
    card = {"page_locked": {"h2d": LINK.h2d / 4, "d2h": LINK.d2h / 4, "both": LINK.both / 4}}
    environment = Environment(Path(sys.prefix))
    found = lower_bounds.optima(environment, path, [PAGE, 4 * PAGE], card)
    assert found[PAGE] == (None, None)
    best, copying = found[4 * PAGE]
    assert copying == pytest.approx(17e3 * UNIT_US, rel=1e-5)
    assert best is not None and 7e3 * UNIT_US < best < 9e3 * UNIT_US


def test_an_environment_without_scipy(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "bare")
    virtual.create_venv(environment.folder, with_pip=False)
    with pytest.raises(LmsError, match=r"there is no SciPy in .*bare\n  Install it there"):
        lower_bounds.optima(environment, tmp_path / "trace", [PAGE], {"page_locked": {}})
