"""The shortest step that a device's memory allows: a linear programme that SciPy's HiGHS solves.

The time is never more than that of a schedule, in steady state, that keeps all storages of an
operator on the device while it runs, and makes bytes again by running the operator that made them.
docs/traces.md has the formula, and why each simplification errs towards a shorter step.

Also a program, run in the benchmark's environment because SciPy is there and not among the tools:
takes a JSON object on standard input, `{"trace": path, "capacities": [bytes, ...], "h2d": ...,
"d2h": ..., "both": ...}` with bytes per second, and prints a list of `[optimum, copying]` for each
capacity, in microseconds: the optimum, and that of a schedule that makes nothing again.
"""

from __future__ import annotations

import json
import math
import sys
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path

from lms_cli.trace import reader, steady
from lms_cli.trace.steady import Step, Value

PARTS = 60  # into which a step is cut: more give a larger optimum, and take longer to solve
RATES = 1.1  # bytes whose making takes the same time but for this factor are taken together
NO_SCIPY = 2  # exit status

Terms = list[tuple[int, float]]  # variables and their factors


@dataclass(frozen=True)
class Link:
    """Between host and device; bytes per second."""

    h2d: float
    d2h: float
    both: float  # of both directions at once, in sum


def optimum_us(step: Step, capacity: int, link: Link, making: bool = True) -> float | None:
    """The least time of a step, in microseconds.

    Args:
        step: what repeats.
        capacity: bytes of device memory.
        link: what copies pass.
        making: whether bytes may be made again.

    Returns:
        None if what one operator uses is larger than the capacity.

    Raises:
        ImportError: SciPy is missing.
    """
    if max(step.used) > capacity:
        return None
    compute = sum(step.durations)
    if compute == 0:
        return 0.0
    return _Model(step, capacity, link, compute, making).solved() * compute


class _Programme:
    """Minimise a sum of costs of variables >= 0, of rows that must not be above a number."""

    def __init__(self) -> None:
        self.costs: list[float] = []
        self.most: list[float] = []
        self.limits: list[float] = []
        self.places: tuple[list[int], list[int]] = ([], [])  # rows and columns of factors
        self.factors: list[float] = []

    def variables(self, count: int, most: float = math.inf, cost: float = 0.0) -> range:
        first = len(self.costs)
        self.costs += [cost] * count
        self.most += [most] * count
        return range(first, first + count)

    def row(self, terms: Terms, limit: float = 0.0) -> None:
        for variable, factor in terms:
            self.places[0].append(len(self.limits))
            self.places[1].append(variable)
            self.factors.append(factor)
        self.limits.append(limit)

    def least(self) -> float:
        from scipy.optimize import linprog
        from scipy.sparse import csr_matrix

        shape = (len(self.limits), len(self.costs))
        found = linprog(
            self.costs,
            A_ub=csr_matrix((self.factors, self.places), shape=shape),
            b_ub=self.limits,
            bounds=[(0, most) for most in self.most],
            method="highs-ipm",
        )
        if found.status != 0:
            raise RuntimeError(f"HiGHS did not solve the programme: {found.message}")
        return float(found.fun)


@dataclass
class _Part:
    """Of the step, from one cut to the next: what is summed up over all bytes."""

    compute: float
    room: float  # at the cut, beside what its operator uses
    away: Terms = field(default_factory=list)  # at the cut
    copied_in: Terms = field(default_factory=list)
    copied_out: Terms = field(default_factory=list)
    made: Terms = field(default_factory=list)  # times


Span = tuple[int, int]  # the first and the last cut while bytes idle
# Bytes alike: the first cut after they are written, None if they never are, and where they idle.
Likes = tuple[int | None, tuple[Span, ...]]


class _Model:
    """The programme of a step. Sizes are shares of the capacity, times of the compute time.

    Cuts are counted from the step's first; those of the steps after it go on from there.
    """

    def __init__(self, step: Step, capacity: int, link: Link, compute: float, making: bool) -> None:
        self.step, self.capacity, self.making = step, capacity, making
        self.cuts = cuts(step)
        # Times to copy, and to make, as much as fits in the memory.
        self.h2d, self.d2h, self.both = (
            1e6 * capacity / rate / compute for rate in (link.h2d, link.d2h, link.both)
        )
        self.us_per_byte = capacity / compute
        self.programme = _Programme()
        before = [0.0, *accumulate(step.durations)]
        ends = [before[cut] for cut in [*self.cuts[1:], self.cuts[0]]]
        ends[-1] += before[-1]
        self.parts = [
            _Part((end - before[cut]) / compute, 1 - step.used[cut] / capacity)
            for cut, end in zip(self.cuts, ends)
        ]

    def solved(self) -> float:
        """The time of the step."""
        for (written, spans), by_rate in self._alike().items():
            whole = sum(by_rate.values())
            copied = None if written is None else self._copied_out(written, spans[-1][1], whole)
            made = {rate: most for rate, most in by_rate.items() if rate < math.inf}
            for span in spans:
                held = copied and copied[span[0] - (written or 0) :]
                self._add_idle(span, whole, held, made)
        for part in self.parts:
            self._add_part(part)
        return self.programme.least()

    def _alike(self) -> dict[Likes, dict[float, float]]:
        """Of all bytes that are alike, how many take how long to make again (inf: they cannot)."""
        found: dict[Likes, dict[float, float]] = {}
        for value in self.step.values:
            if spans := self._spans(value):
                start = spans[0][0] if value.written is None else self._after(value.written)
                shift = start // len(self.cuts) * len(self.cuts)  # of the same, steps later
                written = None if value.written is None else start - shift
                likes = written, tuple((a - shift, b - shift) for a, b in spans)
                by_rate = found.setdefault(likes, {})
                rate = self._rate(value)
                by_rate[rate] = by_rate.get(rate, 0) + value.bytes / self.capacity
        return found

    def _spans(self, value: Value) -> list[Span]:
        """The cuts within its idle intervals; an interval without any is as good as none."""
        spans = [(self._after(a), self._after(b - 1)) for a, b in value.idle]
        return [(a, b - 1) for a, b in spans if a < b]

    def _after(self, operator: int) -> int:
        """The first cut after an operator."""
        steps, rest = divmod(operator, len(self.step.durations))
        return steps * len(self.cuts) + bisect_right(self.cuts, rest)

    def _rate(self, value: Value) -> float:
        """The time to make bytes again, as much as the memory has, rounded down; inf: never."""
        if not self.making or value.again_us is None or value.bytes == 0:
            return math.inf
        rate = value.again_us / value.bytes * self.us_per_byte
        if rate > self.h2d + self.d2h + 2 * self.both:  # then no step gets shorter by it
            return math.inf
        return RATES ** math.floor(math.log(rate, RATES)) if rate > 0 else 0.0

    def _copied_out(self, written: int, last: int, whole: float) -> range:
        """Variables: what has been copied out by each cut since bytes were written."""
        copied = self.programme.variables(last - written + 1, whole)
        self._part(written - 1).copied_out.append((copied[0], 1.0))
        for cut, (before, after) in enumerate(pairwise(copied), written):
            self._part(cut).copied_out += [(after, 1.0), (before, -1.0)]
            self.programme.row([(before, 1.0), (after, -1.0)])
        return copied

    def _add_idle(
        self, span: Span, whole: float, copied: range | None, made: dict[float, float]
    ) -> None:
        """Bytes that idle: how many are away at each cut, and how they come back."""
        count = span[1] - span[0] + 1
        fetched = self.programme.variables(count, whole)  # away, to be copied in
        dropped = {
            rate: self.programme.variables(count, most) for rate, most in made.items()
        }  # away, to be made again
        arriving = self.programme.variables(count)  # copied in until the next cut
        for i in range(count):
            part = self._part(span[0] + i)
            away = [(variables[i], 1.0) for variables in (fetched, *dropped.values())]
            part.away += away
            part.room -= whole
            self.programme.row(away, whole)
            if copied is not None:
                self.programme.row([(fetched[i], 1.0), (copied[i], -1.0)])
            part.copied_in.append((arriving[i], 1.0))
            self.programme.row([*_less(fetched, i), (arriving[i], -1.0)])
            for rate, variables in dropped.items():
                less = _less(variables, i)
                part.made += [(variable, rate * factor) for variable, factor in less]
                self.programme.row([(variable, -factor) for variable, factor in less])

    def _part(self, cut: int) -> _Part:
        """The part that begins with a cut."""
        return self.parts[cut % len(self.parts)]

    def _add_part(self, part: _Part) -> None:
        """It is as long as all of its work, and its copies in each direction."""
        (time,) = self.programme.variables(1, cost=1.0)

        def lasts(terms: Terms, factor: float, more: float = 0.0) -> None:
            scaled = [(variable, factor * share) for variable, share in terms]
            self.programme.row([*scaled, (time, -1.0)], -more)

        self.programme.row([(variable, -share) for variable, share in part.away], part.room)
        lasts(part.made, 1.0, part.compute)
        lasts(part.copied_in, self.h2d)
        lasts(part.copied_out, self.d2h)
        lasts([*part.copied_in, *part.copied_out], self.both)


def _less(variables: range, i: int) -> Terms:
    """By how much a sum is less at the next cut; the last is followed by nothing."""
    following = [(variables[i + 1], -1.0)] if i + 1 < len(variables) else []
    return [(variables[i], 1.0), *following]


def cuts(step: Step) -> list[int]:
    """An operator of each of some parts that take the same time: that with most bytes alive."""
    whole = sum(step.durations)
    sizes = alive(step)
    best: dict[int, int] = {}
    for k, end in enumerate(accumulate(step.durations)):
        part = int(PARTS * (end - step.durations[k]) / whole)
        if part not in best or sizes[k] > sizes[best[part]]:
            best[part] = k
    return sorted(best.values())


def alive(step: Step) -> list[int]:
    """Bytes that each operator uses, or that idle meanwhile."""
    count = len(step.durations)
    changes = [0] * (count + 1)
    for value in step.values:
        for before, after in value.idle:
            steps, last = divmod(after, count)
            changes[(before + 1) % count] += value.bytes
            changes[last] -= value.bytes
            changes[0] += value.bytes * (steps - (before + 1) // count)
    return [used + idle for used, idle in zip(step.used, accumulate(changes))]


def main() -> int:
    """Solve what standard input asks for."""
    try:
        import scipy.optimize  # noqa: F401
    except ImportError:
        return NO_SCIPY
    asked = json.load(sys.stdin)
    link = Link(asked["h2d"], asked["d2h"], asked["both"])
    step = steady.step_of(reader.read(Path(asked["trace"])))
    found = []
    for capacity in asked["capacities"]:
        times = [step and optimum_us(step, capacity, link, making) for making in (True, False)]
        found.append(times)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
