"""What was planned, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lms_cli.bench.cells import Outcome
from lms_cli.plan.planning import GIB, WITH_LMS, CardPlan
from lms_cli.plan.running import Program

CONTENTS = {  # by the names of lms_plan.contents
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer_state": "optimizer state",
    "kept": "other tensors that stay",
    "activations": "activations and temporary results",
}
UNUSED = "reserved by PyTorch's allocator, not in use"
MIB = 1 << 20
STATUS = {"oom": "out of memory", "short": "too few steps", "failed": "failed"}
WIDTH = 100  # characters of a table that is written to a file


@dataclass(frozen=True)
class Shares:
    """Of the time of a step."""

    computing: float
    making: float  # the same bytes again
    link: float  # waiting for copies
    host: float  # neither computing nor copying

    @property
    def bound(self) -> str:
        """What most of the time is spent on."""
        parts = {
            "compute": self.computing + self.making,
            "the link": self.link,
            "the host": self.host,
        }
        return max(parts, key=lambda name: parts[name])


def shares(outcome: Outcome) -> Shares:
    """Where the time of a run's step goes."""
    busy, step = outcome.figures["busy_ns"], outcome.step_ns
    waiting = outcome.figures["waiting_ns"]
    return Shares(
        computing=(busy["compute"] - busy["again"]) / step,
        making=busy["again"] / step,
        link=waiting / step,
        host=max(0.0, 1 - (busy["compute"] + waiting) / step),
    )


def contents(ideal: Outcome) -> dict[str, int]:
    """Bytes of the peak need by what they are."""
    named = {title: ideal.figures["contents"][name] for name, title in CONTENTS.items()}
    return named | {UNUSED: max(0, ideal.need - sum(named.values()))}


# --- tables ---


def show(program: Program, plans: list[CardPlan], folder: Path) -> None:
    """Print the tables."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(WIDTH, 44 + 18 * len(plans))
    console.print(_need_table(program, plans[0].ideal))
    console.print(_card_table(program, plans))
    for line in notes(plans):
        console.print(line, markup=False, soft_wrap=True)
    console.print(
        f"What {program.name} printed is in {folder}; its numbers mean nothing.",
        markup=False,
        soft_wrap=True,
    )


def notes(plans: list[CardPlan]) -> list[str]:
    """What a reader must know of figures that are missing or not right."""
    said = []
    unknown = {name for plan in plans for name in plan.ideal.figures["unsimulated"]}
    if unknown:
        said.append(
            f"{len(unknown)} kernel(s) take no time here, so it is slower: "
            + ", ".join(sorted(unknown)[:3])
        )
    for plan in plans:
        if plan.lms is not None and not plan.lms.ok:
            said.append(f"{plan.card.name} with LMS: {_why(plan.lms)}")
    return said


def _why(failed: Outcome) -> str:
    if failed.status == "short":
        return f"it ended after {failed.reason}; {WITH_LMS} are needed, since LMS learns"
    return failed.reason


def _need_table(program: Program, ideal: Outcome) -> Any:
    from rich.table import Table

    table = Table(title=f"{program.name}: peak need", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    for title, size in contents(ideal).items():
        table.add_row(title, _memory(size))
    table.add_section()
    table.add_row("together", _memory(ideal.need))
    return table


def _card_table(program: Program, plans: list[CardPlan]) -> Any:
    from rich.table import Table

    table = Table(title=f"{program.name}: a training step on each card")
    table.add_column("", no_wrap=True)
    for plan in plans:
        table.add_column(plan.card.name, justify="right")
    for title, text in _rows(plans):
        cells = [text(plan) for plan in plans]
        if any(cell != "-" for cell in cells):
            table.add_row(title, *cells)
    return table


def _rows(plans: list[CardPlan]) -> list[tuple[str, Callable[[CardPlan], str]]]:
    """Titles, and what they say of a card; a dash if nothing."""

    def lms(text: Callable[[CardPlan, Outcome], str]) -> Callable[[CardPlan], str]:
        return lambda plan: text(plan, plan.lms) if plan.lms and plan.lms.ok else "-"

    def better(text: Callable[[CardPlan, Outcome], str]) -> Callable[[CardPlan], str]:
        return lambda plan: (
            text(plan, plan.deterministic) if plan.deterministic and plan.gains else "-"
        )

    return [
        ("memory for it", lambda plan: _memory(plan.card.memory)),
        ("fits without LMS", _fits),
        ("a step, if memory had no end", lambda plan: _time(plan.ideal)),
        ("with LMS", _with_lms),
        ("  a step", lms(lambda plan, outcome: _time(outcome))),
        ("  speed, of memory without end", lms(lambda plan, outcome: _speed(plan, outcome))),
        ("  host memory", lms(lambda plan, outcome: _memory(outcome.host))),
        ("  copied to the card", lms(lambda plan, outcome: _bytes(outcome.moved[0]))),
        ("  copied from the card", lms(lambda plan, outcome: _bytes(outcome.moved[1]))),
        ("  made again", lms(lambda plan, outcome: _bytes(outcome.made))),
        ("of the time, computing", _of_last(lambda found: _percent(found.computing))),
        ("  making bytes again", lms(lambda plan, outcome: _percent(shares(outcome).making))),
        ("  waiting for copies", _of_last(lambda found: _percent(found.link))),
        ("  waiting for the host", _of_last(lambda found: _percent(found.host))),
        ("bound by", _of_last(lambda found: found.bound)),
        ("with cudnn.deterministic, too", better(lambda plan, outcome: "runs")),
        ("  a step", better(lambda plan, outcome: _time(outcome))),
        ("  speed, of memory without end", better(lambda plan, outcome: _speed(plan, outcome))),
    ]


def _of_last(text: Callable[[Shares], str]) -> Callable[[CardPlan], str]:
    """Of the run with LMS, or of the one without where it fits."""

    def of(plan: CardPlan) -> str:
        outcome = plan.lms or plan.ideal
        return text(shares(outcome)) if outcome.ok else "-"

    return of


def _fits(plan: CardPlan) -> str:
    if plan.limited is not None and plan.limited.ok:
        return "just"
    return "yes" if plan.fits else f"no, {plan.ideal.need / plan.card.memory:.2f}x"


def _with_lms(plan: CardPlan) -> str:
    if plan.lms is None:
        return "-"
    return "runs" if plan.lms.ok else STATUS[plan.lms.status]


def _time(outcome: Outcome) -> str:
    """Of a step."""
    if outcome.step_ns < 1e9:
        return f"{outcome.step_ns / 1e6:,.1f} ms"
    return f"{outcome.step_ns / 1e9:,.2f} s"


def _speed(plan: CardPlan, outcome: Outcome) -> str:
    return _percent(plan.ideal.step_ns / outcome.step_ns)


def _memory(size: int) -> str:
    if size == 0:
        return "0"
    return f"{size / GIB:,.1f} GiB" if size >= GIB else f"{size / MIB:,.1f} MiB"


def _bytes(size: float) -> str:
    """Of what moves, in powers of ten as links are rated."""
    if size == 0:
        return "0"
    return f"{size / 1e9:,.2f} GB" if size >= 1e8 else f"{size / 1e6:,.2f} MB"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


# --- JSON ---


def report(program: Program, plans: list[CardPlan], folder: Path) -> dict[str, Any]:
    """Everything, in bytes and seconds."""
    return {
        "program": list(program.words),
        "need_bytes": plans[0].ideal.need,
        "contents_bytes": contents(plans[0].ideal),
        "cards": [
            {
                "card": plan.card.name,
                "memory_bytes": plan.card.memory,
                "fits": plan.fits,
                "ideal": _step(plan, plan.ideal),
                "lms": _step(plan, plan.lms),
                "lms_deterministic": _step(plan, plan.deterministic),
            }
            for plan in plans
        ],
        "notes": notes(plans),
        "output": str(folder),
    }


def _step(plan: CardPlan, outcome: Outcome | None) -> dict[str, Any] | None:
    """A step of one run; None where there was none."""
    if outcome is None:
        return None
    if not outcome.ok:
        return {"status": outcome.status, "reason": outcome.reason}
    found = shares(outcome)
    to_device, from_device = outcome.moved
    return {
        "status": outcome.status,
        "step_seconds": outcome.step_ns / 1e9,
        "of_ideal": plan.ideal.step_ns / outcome.step_ns,
        "host_bytes": outcome.host,
        "to_device_bytes": to_device,
        "from_device_bytes": from_device,
        "made_again_bytes": outcome.made,
        "shares": {
            "computing": found.computing,
            "making_again": found.making,
            "waiting_for_copies": found.link,
            "waiting_for_the_host": found.host,
        },
        "bound_by": found.bound,
    }
