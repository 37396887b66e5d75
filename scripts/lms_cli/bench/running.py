"""Running the benchmark's cells, each in a process of its own on the simulated device."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lms_cli import files, progress, simulate
from lms_cli.bench import cells as bench_cells
from lms_cli.bench import lower_bounds
from lms_cli.bench.cells import Cell, Fingerprints, Outcome, Subject
from lms_cli.bench.lower_bounds import Bound
from lms_cli.environments import lms_environment
from lms_cli.environments.lms_environment import Environment
from lms_cli.errors import LmsError
from lms_cli.trace import reader

TIMEOUT = 3600  # seconds a cell may take


@dataclass
class Results:
    """The outcomes of a run, in the order in which tables show them."""

    outcomes: dict[Cell, Outcome] = field(default_factory=dict)
    bounds: dict[Cell, Bound] = field(default_factory=dict)  # empty without traces

    def ideal(self, subject: Subject) -> tuple[Cell, Outcome]:
        """The ideal cell of a subject."""
        return next(
            (cell, outcome)
            for cell, outcome in self.outcomes.items()
            if cell.subject == subject and cell.ratio is None
        )

    def subjects(self) -> list[Subject]:
        """All subjects."""
        return list(dict.fromkeys(cell.subject for cell in self.outcomes))

    def of_ideal(self, cell: Cell) -> float | None:
        """The speed of a cell as a share of the ideal's; None where one of them failed."""
        outcome, best = self.outcomes[cell], self.ideal(cell.subject)[1]
        return best.step_ns / outcome.step_ns if outcome.ok and best.ok else None


class Runner:
    """Runs cells, or finds what they gave before."""

    def __init__(
        self,
        environment: Environment,
        built: Path,
        folder: Path,
        known: Fingerprints,
        parallel: int,
    ) -> None:
        """A runner.

        Args:
            environment: has the LMS wheel.
            built: the simulated device for it.
            folder: where outcomes and traces are kept.
            known: what they depend on.
            parallel: cells that run at once.
        """
        self.environment, self.built, self.folder = environment, built, folder
        self.known, self._parallel = known, parallel

    def run(self, cells: Iterable[Cell], results: Results) -> None:
        """Add the outcomes of cells to results."""
        wanted = list(cells)
        kept = {cell: bench_cells.read(self._path(cell)) for cell in wanted}
        found = {cell: outcome for cell, outcome in kept.items() if outcome is not None}
        for cell, outcome in found.items():
            progress.note(f"{cell.title}: {outcome.summary}, as before")
        missing = [cell for cell in wanted if cell not in found]
        doing = f"running {len(missing)} cell(s)"
        with (
            progress.step(doing, len(missing), brief=True) as advance,
            ThreadPoolExecutor(self._parallel) as pool,
        ):
            running = {pool.submit(self._outcome, cell): cell for cell in missing}
            try:
                for future in as_completed(running):
                    cell = running[future]
                    found[cell] = future.result()
                    advance()
                    progress.note(f"{cell.title}: {found[cell].summary}")
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        results.outcomes |= {cell: found[cell] for cell in wanted}

    def _path(self, cell: Cell) -> Path:
        """Where its outcome is kept."""
        return cell.path(self.folder / "cells", self.known.of(cell.rival))

    def _outcome(self, cell: Cell) -> Outcome:
        return outcome_of(self._path(cell), cell, lambda: self._train(cell))

    def trace(self, subject: Subject, iterations: int) -> Path:
        """The trace of a subject's training, recorded where it fits."""
        subject = replace(subject, host=bench_cells.HOST_LIMIT, disk=0)  # it all fits
        cell = Cell(subject, "recording", None, bench_cells.UNLIMITED, iterations)
        path = cell.path(self.folder / "traces", self.known.engine).with_suffix(".jsonl")
        if not path.exists():
            with (
                progress.step(f"tracing {subject.title}"),
                files.written_beside(path) as unfinished,
            ):
                self._train(cell, PYTORCH_LMS_TRACE=str(unfinished))
        return path

    def optima(
        self, subject: Subject, trace: Path, capacities: list[int]
    ) -> dict[int, lower_bounds.Optimum]:
        """The optima of a subject by capacity; none where they cannot be found."""
        card = simulate.card(subject.card)
        try:
            with progress.step(f"looking for the optimum of {subject.title}"):
                return lower_bounds.optima(self.environment, trace, capacities, card)
        except LmsError as error:
            progress.note(f"no optimum for {subject.title}: {error}")
            return {}

    def _train(self, cell: Cell, **variables: str) -> str:
        """Run a cell's program; return what it printed.

        Raises:
            LmsError: it did not end by itself, or what it needs cannot be installed.
        """
        packages = list(bench_cells.named("rival", cell.rival).packages)
        python = lms_environment.with_packages(self.environment, packages).python
        arguments = ["--workload", cell.subject.workload, "--rival", cell.rival]
        arguments += ["--batch", str(cell.subject.batch), "--iterations", str(cell.iterations)]
        arguments += ["--compile"] if cell.subject.compiled else []
        if cell.subject.devices > 1:
            arguments += ["--devices", str(cell.subject.devices)]
        command = [str(python), str(bench_cells.PROGRAM), *arguments]
        return printed_by(command, self._variables(cell) | variables)

    def _variables(self, cell: Cell) -> dict[str, str]:
        """Of the cell's process."""
        base = environment_variables()
        if bench_cells.named("rival", cell.rival).uses_lms:
            base |= limits(cell.capacity, cell.subject.host)
            if cell.subject.disk:
                base["PYTORCH_LMS_DISK"] = f"{self.folder}:{cell.subject.disk}"
        return simulate.variables(
            self.built,
            base,
            kernels="timed",
            card=cell.subject.card,
            capacity=cell.capacity,
            driver_lock=True,
        )


def environment_variables() -> dict[str, str]:
    """For programs that measure: nothing of the caller's that would change their figures."""
    base = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTORCH_", "PYTHON", "CUDA_", "TORCH_"))
    }
    return base | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


def limits(capacity: int, host: int) -> dict[str, str]:
    """For programs with LMS: all of each device, as rivals have it, and a host of their own."""
    return {
        "PYTORCH_LMS_LIMIT": str(capacity),
        "PYTORCH_LMS_HOST_LIMIT": str(host),
        "PYTORCH_LMS_HOST_LEDGER": "none",
    }


def outcome_of(path: Path, run: Any, train: Callable[[], str]) -> Outcome:
    """What came of a run, by what it prints; kept in the file if it ended by itself."""
    try:
        outcome = bench_cells.parse(train())
    except LmsError as error:  # perhaps not the next time, so it is not kept
        return Outcome("failed", str(error), {})
    bench_cells.write(path, run, outcome)
    return outcome


def printed_by(command: list[str], variables: dict[str, str]) -> str:
    """Run a program that measures; return what it printed.

    Raises:
        LmsError: it did not end by itself.
    """
    try:
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        raise LmsError(f"it took more than {TIMEOUT / 60:g} minutes") from None
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise LmsError(f"it ended with status {done.returncode}: {said}")
    return done.stdout


def measure(
    runner: Runner,
    subjects: list[Subject],
    rivals: list[str],
    ratios: list[float],
    iterations: int,
) -> Results:
    """Run the ideals, and then the rivals on the memory that these leave them."""
    results = Results()
    runner.run([bench_cells.ideal(subject, iterations) for subject in subjects], results)
    limited = [
        cell
        for subject in subjects
        if (best := results.ideal(subject)[1]).ok
        for cell in bench_cells.rivals(subject, rivals, ratios, best)
    ]
    runner.run(limited, results)
    return results


def bounds(runner: Runner, results: Results) -> dict[Cell, Bound]:
    """What the cells on limited memory can be judged by, but for sharded ones.

    Bounds know nothing of collectives.
    """
    found: dict[Cell, Bound] = {}
    for subject in results.subjects():
        cells = [cell for cell in results.outcomes if cell.subject == subject and cell.ratio]
        if cells and subject.devices == 1:
            found |= _bounds(runner, subject, cells)
    return found


def _bounds(runner: Runner, subject: Subject, cells: list[Cell]) -> dict[Cell, Bound]:
    """Those of one subject; none where it cannot be traced, for the figures stand without."""
    try:
        path = runner.trace(subject, cells[0].iterations)
        with progress.step(f"reading the trace of {subject.title}", brief=True):
            trace = reader.read(path)
    except LmsError as error:
        progress.note(f"no bound for {subject.title}: {error}")
        return {}
    card = simulate.card(subject.card)
    capacities = sorted({cell.capacity for cell in cells})
    # It knows of no disk: nothing is as fast.
    optima = {} if subject.disk else runner.optima(subject, path, capacities)
    by_capacity = {}
    doing = f"looking for bounds of {subject.title}"
    for capacity in progress.each(doing, capacities, brief=True):
        best, copying = optima.get(capacity, (None, None))
        found = lower_bounds.bound(trace, capacity, card, subject.host, subject.disk)
        by_capacity[capacity] = replace(found, optimum_ns=best, copying_ns=copying)
    return {cell: by_capacity[cell.capacity] for cell in cells}
