"""What a script would do on cards: a run without a limit, and one with LMS if it does not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from lms_bench.catalogue import ITERATIONS

from lms_cli import simulate
from lms_cli.bench.cells import PIECE, Outcome, named
from lms_cli.errors import PlanError
from lms_cli.plan.running import Run, Runner

USABLE = 0.95  # of a card's memory: LMS leaves as much to others, such as the CUDA context
GIB = 1 << 30
WITH_LMS = named("rival", "lms").counted(ITERATIONS).stop  # iterations
WORTH_SAYING = 0.02  # by how much an alternative must change the step


@dataclass(frozen=True)
class Card:
    """A card, and how much of its memory the program may use."""

    name: str
    memory: int


@dataclass(frozen=True)
class CardPlan:
    """What the script does on a card."""

    card: Card
    ideal: Outcome  # memory without end
    limited: Outcome | None = None  # the card's memory without LMS; None where that is no question
    lms: Outcome | None = None  # None where it fits
    deterministic: Outcome | None = None  # LMS with cudnn.deterministic; None where that is no use

    @property
    def fits(self) -> bool:
        """Whether it runs without LMS."""
        return fits(self.ideal, self.card) or (self.limited is not None and self.limited.ok)

    @property
    def gains(self) -> bool:
        """Whether cudnn.deterministic changes the step."""
        if self.lms is None or self.deterministic is None or not self.deterministic.ok:
            return False
        if not self.lms.ok:
            return True
        return abs(self.deterministic.step_ns / self.lms.step_ns - 1) > WORTH_SAYING


def card(name: str, memory: int | None) -> Card:
    """A simulated card, held to some memory if that is given.

    Raises:
        UsageError: there is none of that name.
    """
    whole = simulate.card(name)["memory"]
    usable = int(whole * USABLE) if memory is None else min(memory, whole)
    return Card(name, usable // PIECE * PIECE)


def plan(
    runner: Runner, cards: Iterable[Card], parallel: int, done: Callable[[], None] = lambda: None
) -> list[CardPlan]:
    """All cards, several at a time; `done` is called whenever one is.

    Raises:
        PlanError: the script fails, or does not train for long enough.
    """
    with ThreadPoolExecutor(parallel) as pool:
        running = [pool.submit(on, runner, card) for card in cards]
        for future in running:
            future.add_done_callback(lambda _: done())
        try:
            return [future.result() for future in running]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            runner.stop()
            raise


def on(runner: Runner, card: Card) -> CardPlan:
    """One card.

    Raises:
        PlanError: the script fails, or does not train for long enough.
    """
    ideal = _ideal(runner, card)
    if fits(ideal, card):
        return CardPlan(card, ideal)
    limited = None
    if ideal.figures["peak_allocated_bytes"] <= card.memory:  # it may do with less than it takes
        limited = runner.run(Run(card.name, "ideal", card.memory))
        if limited.ok:
            return CardPlan(card, ideal, limited)
    lms = runner.run(Run(card.name, "lms", card.memory))
    deterministic = None
    if ideal.figures["convolutions"] and not ideal.figures["deterministic"]:
        deterministic = runner.run(Run(card.name, "lms_deterministic", card.memory))
    return CardPlan(card, ideal, limited, lms, deterministic)


def fits(ideal: Outcome, card: Card) -> bool:
    """Whether the card has all that PyTorch's allocator takes where there is enough."""
    return ideal.need <= card.memory


def _ideal(runner: Runner, card: Card) -> Outcome:
    run = Run(card.name, "ideal")
    outcome = runner.run(run)
    if outcome.ok:
        return outcome
    name, log = runner.program.name, runner.log(run)
    if outcome.status == "short":
        raise PlanError(
            f"{name} ended after {outcome.reason} of an optimizer, and {ITERATIONS} are needed to "
            f"time it, {WITH_LMS} with LMS. It has needed {outcome.need / GIB:,.2f} GiB of device "
            "memory until then",
            "Let it train for longer. Counted are the steps of optimizers that derive from "
            f"torch.optim.Optimizer, in the script's own process. What it printed is in {log}.",
        )
    raise PlanError(
        f"{name} failed: {outcome.reason}\n{runner.last_lines(run)}",
        f"Everything that it printed is in {log}.",
    )
