"""The benchmark's tables: on the terminal, and as Markdown for docs/benchmarks/."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from lms_bench import catalogue
from simcuda import cards

from lms_cli.bench.cells import Cell, Outcome, Subject
from lms_cli.bench.lower_bounds import Bound
from lms_cli.bench.running import Results

GIB = 1 << 30
DETAILS = (  # docs/benchmarks/larger-than-memory.md explains them
    "at",
    "of ideal",
    "of bound",
    "of floor",
    "of optimum",
    "ms",
    "in GB",
    "out GB",
    "in/bound",
    "out/bound",
    "made GB",
    "hidden",
    "host GiB",
    "replay",
)
SHARDED = (  # docs/benchmarks/fsdp.md explains them; of one rank
    "at",
    "rival",
    "of ideal",
    "ms",
    "in GB",
    "out GB",
    "peak GiB",
    "host GiB",
    "computing ms",
    "collectives ms",
)
LIMITS: dict[str, Callable[[Bound], float | None]] = {
    "bound": lambda bound: bound.step_ns,
    "floor": lambda bound: bound.floor_ns,
    "optimum of copies": lambda bound: bound.copying_ns,
    "optimum": lambda bound: bound.optimum_ns,
}
MARK = "<!-- `lms bench --markdown` writes what follows -->"
WIDTH = 145  # characters of a table that is written to a file


@dataclass(frozen=True)
class Table:
    """Text in rows and columns."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(results: Results) -> Iterator[Table]:
    """Of each subject, the speeds of all rivals and the traffic of LMS, or of all if sharded."""
    for subject in results.subjects():
        yield speeds(results, subject)
        if subject.devices > 1:
            yield sharded(results, subject)
            continue
        for rival in ("lms", "lms_copies"):
            if cells := _cells(results, subject, rival):
                rows = tuple(_details(results, cell) for cell in cells)
                yield Table(f"{subject.title}: {rival}", DETAILS, rows)


def speeds(results: Results, subject: Subject) -> Table:
    """The share of the ideal speed at each ratio: of each rival, and what no engine can beat."""
    best = results.ideal(subject)[1]
    title = f"{subject.title}: {_ideal(best)}"
    others = [cell for cell in results.outcomes if cell.subject == subject and cell.ratio]
    ratios = sorted({cell.ratio for cell in others if cell.ratio})
    rows = []
    for rival in dict.fromkeys(cell.rival for cell in others):
        by_ratio = {cell.ratio: cell for cell in others if cell.rival == rival}
        shown = (_speed(results, by_ratio[ratio]) for ratio in ratios if ratio in by_ratio)
        rows.append((rival, *shown))
    for name, least in LIMITS.items():
        shares = [_limit(results, subject, ratio, least) for ratio in ratios]
        if any(share != "-" for share in shares):
            rows.append((f"the {name}", *shares))
    return Table(title, ("at", *(f"{ratio:g}" for ratio in ratios)), tuple(rows))


def sharded(results: Results, subject: Subject) -> Table:
    """What a rank of each rival does."""
    cells = [cell for cell in results.outcomes if cell.subject == subject]
    cells.sort(key=lambda cell: cell.ratio or 0)
    rows = tuple(_rank(results, cell) for cell in cells)
    return Table(f"{subject.title}: of one rank", SHARDED, rows)


def _rank(results: Results, cell: Cell) -> tuple[str, ...]:
    outcome = results.outcomes[cell]
    names = ("-" if cell.ratio is None else f"{cell.ratio:g}", cell.rival, _speed(results, cell))
    if not outcome.ok:
        return (*names, *("-" for _ in SHARDED[len(names) :]))
    busy = outcome.figures["busy_ns"]
    return (
        *names,
        f"{outcome.step_ns / 1e6:,.1f}",
        *(f"{bytes / 1e9:,.2f}" for bytes in outcome.moved),
        f"{outcome.need / GIB:,.1f}",
        f"{outcome.host / GIB:,.1f}",
        f"{busy['compute'] / 1e6:,.1f}",
        f"{busy['collective'] / 1e6:,.1f}",
    )


def _limit(
    results: Results, subject: Subject, ratio: float, least: Callable[[Bound], float | None]
) -> str:
    """What the least time leaves of the ideal speed."""
    best = results.ideal(subject)[1]
    for cell, bound in results.bounds.items():
        if cell.subject == subject and cell.ratio == ratio and best.ok:
            time = least(bound)
            return "-" if time is None else _percent(best.step_ns / max(time, best.step_ns))
    return "-"


def reasons(results: Results) -> Iterator[str]:
    """Why cells failed that did not run out of memory; each reason of a rival once."""
    failed = {
        (cell.subject.workload, cell.rival, outcome.reason)
        for cell, outcome in results.outcomes.items()
        if outcome.status == "failed"
    }
    for workload, rival, reason in sorted(failed):
        yield f"{workload}, {rival}: {reason}"


def _cells(results: Results, subject: Subject, rival: str) -> list[Cell]:
    return [
        cell
        for cell in results.outcomes
        if cell.subject == subject and cell.rival == rival and cell.ratio
    ]


def _ideal(best: Outcome) -> str:
    if not best.ok:
        return f"the ideal {_failure(best)}"
    return f"ideal {best.step_ns / 1e6:,.1f} ms, needs {best.need / GIB:,.1f} GiB"


def _speed(results: Results, cell: Cell) -> str:
    share = results.of_ideal(cell)
    return _failure(results.outcomes[cell]) if share is None else _percent(share)


def _failure(outcome: Outcome) -> str:
    return "no memory" if outcome.status == "oom" else outcome.status


def _details(results: Results, cell: Cell) -> tuple[str, ...]:
    outcome = results.outcomes[cell]
    if not outcome.ok:
        return (f"{cell.ratio:g}", _failure(outcome), *("-" for _ in DETAILS[2:]))
    bound = results.bounds.get(cell)
    to_device, from_device = outcome.moved
    return (
        f"{cell.ratio:g}",
        _speed(results, cell),
        "-" if bound is None else _percent(bound.step_ns / outcome.step_ns),
        "-" if bound is None else _percent(bound.floor_ns / outcome.step_ns),
        _of_optimum(cell, bound, outcome),
        f"{outcome.step_ns / 1e6:,.1f}",
        f"{to_device / 1e9:,.2f}",
        f"{from_device / 1e9:,.2f}",
        "-" if bound is None else _times(to_device, bound.h2d_bytes),
        "-" if bound is None else _times(from_device, bound.d2h_bytes),
        f"{outcome.made / 1e9:,.2f}",
        "-" if outcome.figures["hidden"] is None else _percent(outcome.figures["hidden"]),
        f"{outcome.host / GIB:,.1f}",
        _replay(bound, outcome),
    )


def _of_optimum(cell: Cell, bound: Bound | None, outcome: Outcome) -> str:
    """Of what is possible with copies alone, if the rival only copies."""
    if bound is None:
        return "-"
    least = bound.copying_ns if cell.rival == "lms_copies" else bound.optimum_ns
    return "-" if least is None else _percent(least / outcome.step_ns)


def _replay(bound: Bound | None, outcome: Outcome) -> str:
    """By how much the replay of the trace, which makes nothing again, takes longer."""
    if bound is None or bound.replay_ns is None or outcome.made > 0:
        return "-"
    return f"{100 * (bound.replay_ns / outcome.step_ns - 1):+.1f} %"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _times(moved: float, least: float) -> str:
    return f"{moved / least:.2f}" if least else "-"


def show(results: Results) -> None:
    """Print the tables of cells."""
    print_all(tables(results), reasons(results))


def print_all(shown: Iterable[Table], failures: Iterable[str]) -> None:
    """Print tables, and why cells failed."""
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    for table in shown:
        drawn = RichTable(title=table.title)
        drawn.add_column(table.headings[0], no_wrap=True)
        for heading in table.headings[1:]:
            drawn.add_column(heading, justify="right", no_wrap=True)
        for row in table.rows:
            drawn.add_row(*row)
        console.print(drawn)
    for reason in failures:
        console.print(f"failed: {reason}", markup=False)


def markdown(results: Results, command: str) -> str:
    """The tables of cells as Markdown, with the command that makes them."""
    return in_markdown(command, tables(results), reasons(results))


def in_markdown(command: str, shown: Iterable[Table], failures: Iterable[str]) -> str:
    """Tables as Markdown, and why cells failed."""
    parts = [f"Made by `{command}`."]
    for table in shown:
        rules = ("---", *("---:" for _ in table.headings[1:]))
        lines = [_line(row) for row in (table.headings, rules, *table.rows)]
        parts.append(f"### {table.title}\n\n" + "\n".join(lines))
    failed = "\n".join(f"- {reason}" for reason in failures)
    return "\n\n".join([*parts, failed] if failed else parts) + "\n"


def page(text: str, tables: str) -> str:
    """A page with the tables in the place of what follows its mark; only these without one."""
    before, mark, _ = text.partition(MARK)
    return f"{before}{MARK}\n\n{tables}" if mark else tables


def _line(row: tuple[str, ...]) -> str:
    return f"| {' | '.join(row)} |"


def _unusual(entry: catalogue.Workload | catalogue.Rival) -> str:
    return "" if entry.usual else " (only if named)"


def show_catalogue() -> None:
    """Print what can be chosen."""
    from rich.console import Console
    from rich.table import Table as RichTable

    entries = {
        "workload": [
            (w.name, f"{w.description}; batch {w.batch}{_unusual(w)}") for w in catalogue.WORKLOADS
        ],
        "rival": [(r.name, f"{r.description}{_unusual(r)}") for r in catalogue.RIVALS],
        "card": [
            (name, f"{cards.card(name)['memory'] / GIB:,.0f} GiB of its own")
            for name in cards.names()
        ],
    }
    for what, rows in entries.items():
        table = RichTable(what, "", title=None)
        for row in rows:
            table.add_row(*row)
        Console(highlight=False).print(table)
