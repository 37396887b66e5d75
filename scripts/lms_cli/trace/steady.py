"""One step of a trace in its steady state: its operators, and the bytes that idle between uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from lms_cli.trace.reader import AGAIN, ALLOC, FLAGS, FREE, PICOSECONDS, STEP, WRITTEN, Trace

Idle = tuple[int, int]  # the operators that use a storage before and after, neither within


@dataclass
class Value:
    """The bytes of a storage from one write to the next.

    Operators are counted from the step's first; those of the steps after it go on from there.
    """

    bytes: int
    written: int | None  # the operator that wrote it; None: it is never written
    again_us: float | None = None  # time to make it again; None: that is not possible
    idle: list[Idle] = field(default_factory=list)


@dataclass
class Step:
    """A step that repeats for ever."""

    durations: list[float]  # microseconds of each operator
    used: list[int]  # bytes that each uses
    values: list[Value]  # with idle intervals


@dataclass
class _Operator:
    name: int
    duration: float
    uses: list[tuple[int, bool]]  # storages, and whether it writes to them
    again: list[int]  # those whose bytes it can make again


def step_of(trace: Trace) -> Step | None:
    """The last step that another one like it follows; None if there is none.

    Two steps are alike if they run the same operators on storages of the same sizes, one for one.
    """
    operators, sizes, steps = _unpacked(trace)
    if len(steps) < 2:
        return None
    begin, end = steps[-2:]
    count = end - begin

    def shape(index: int) -> tuple[int, list[tuple[int, bool]]]:
        operator = operators[index]
        return operator.name, sorted((sizes[number], wrote) for number, wrote in operator.uses)

    if count == 0 or len(operators) - end < count:
        return None
    if any(shape(begin + k) != shape(end + k) for k in range(count)):
        return None
    step = operators[begin:end]
    return Step(
        [operator.duration for operator in step],
        [sum(sizes[number] for number, _ in operator.uses) for operator in step],
        list(_values(operators, sizes, begin, end)),
    )


def _values(operators: list[_Operator], sizes: list[int], begin: int, end: int) -> Iterator[Value]:
    """Those written in [begin, end), and what idles there without having been written for long."""
    uses: dict[int, list[tuple[int, bool]]] = {}
    for index, operator in enumerate(operators):
        for number, wrote in operator.uses:
            uses.setdefault(number, []).append((index, wrote))
    count = end - begin
    for number, history in uses.items():
        value = None
        last = written = -1
        for index, wrote in history:
            # One written in the step before has its like in this one.
            is_old = value is None and begin <= last < end and written < begin - count
            if is_old:
                value = Value(sizes[number], None)
            if value is not None and (value.written is not None or begin <= last < end):
                value.idle.append((last - begin, index - begin))
            if wrote:
                if value is not None and value.idle:
                    yield value
                value, written = None, index
                if begin <= index < end:
                    again = _again_us(operators[index], sizes, number)
                    value = Value(sizes[number], index - begin, again)
            last = index
        if value is not None and value.idle:
            yield value


def _again_us(operator: _Operator, sizes: list[int], number: int) -> float | None:
    """Its share, by bytes, of the time of an operator that makes several storages at once."""
    if number not in operator.again:
        return None
    whole = sum(sizes[other] for other in operator.again)
    return operator.duration * sizes[number] / whole if whole else operator.duration


def _unpacked(trace: Trace) -> tuple[list[_Operator], list[int], list[int]]:
    """Operators, bytes of each storage, and the operators at which steps begin."""
    operators: list[_Operator] = []
    sizes: list[int] = []
    steps: list[int] = []
    words = iter(trace.words)
    for kind in words:
        if kind == ALLOC:
            sizes.append(next(words))
        elif kind == FREE:
            next(words)
        elif kind == STEP:
            steps.append(len(operators))
        else:
            name, duration, _, count = (next(words) for _ in range(4))
            uses = [divmod(next(words), FLAGS) for _ in range(count)]
            operators.append(
                _Operator(
                    name,
                    duration / PICOSECONDS,
                    [(number, bool(flags & WRITTEN)) for number, flags in uses],
                    [number for number, flags in uses if flags & AGAIN],
                )
            )
    return operators, sizes, steps
