"""Several models at once: a pool of jobs, against the same models one by one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lms_bench import run_jobs
from lms_bench.catalogue import ITERATIONS

from lms_cli import files, progress, simulate
from lms_cli.bench import cells, reporting
from lms_cli.bench.running import (
    Results,
    Runner,
    environment_variables,
    limits,
    outcome_of,
    printed_by,
)
from lms_cli.bench.tables import GIB, Table
from lms_cli.environments.lms_environment import Environment
from lms_cli.errors import LmsError, UsageError

STEPS = 40  # of a job unless the user says otherwise
PROGRAM = Path(run_jobs.__file__)
PLOT = Path(__file__).with_name("plot_jobs.py")
RESULTS = "jobs.json"
# Ways: one after the other on one device, as jobs of a pool, and spread over the devices before any
# begins, without LMS.
ONE_BY_ONE, POOL, WITHOUT_LMS = "one_by_one", "pool", "without_lms"


@dataclass(frozen=True)
class Job:
    """A model that is trained for so many steps."""

    subject: cells.Subject
    steps: int

    @property
    def title(self) -> str:
        """As the command line has it."""
        return f"{self.subject.workload}@{self.subject.batch}:{self.steps}"


@dataclass(frozen=True)
class Run:
    """All jobs on devices of one size, in one way."""

    jobs: tuple[Job, ...]
    way: str
    devices: int
    capacity: int  # bytes of each device
    turn_seconds: float

    @property
    def title(self) -> str:
        """As progress and errors name it."""
        return f"{len(self.jobs)} job(s) on {self.devices} device(s), {self.way}"

    def path(self, folder: Path, fingerprint: str) -> Path:
        """The file for its outcome."""
        key = cells.key_of(self, fingerprint)
        return folder / f"jobs-{self.way}-{self.devices}-{key}.json"


@dataclass(frozen=True)
class Compared:
    """What came of all ways, and what is known of the models alone."""

    jobs: tuple[Job, ...]
    ideals: Results
    runs: dict[Run, cells.Outcome]

    @property
    def ok(self) -> bool:
        """Whether all ran that LMS gives memory."""
        return all(outcome.ok for run, outcome in self.runs.items() if run.way != WITHOUT_LMS)

    def computing_ns(self, job: Job) -> float:
        """Of all its steps, where nothing moves."""
        return job.steps * self.ideals.ideal(job.subject)[1].step_ns

    def bound_ns(self, devices: int) -> float:
        """The least time: all devices compute to the end, and no job is on two at once."""
        each = [self.computing_ns(job) for job in self.jobs]
        return max(sum(each) / devices, *each)


def parse(text: str, card: str) -> Job:
    """A job from `NAME`, `NAME@BATCH`, `NAME:STEPS` or `NAME@BATCH:STEPS`.

    Raises:
        UsageError: it is none of these.
    """
    name, colon, steps = text.partition(":")
    if colon and not (steps.isdecimal() and int(steps) > 0):
        raise UsageError(
            f"{text}: {steps!r} is no number of steps", f"Write one, as {name}:{STEPS}."
        )
    return Job(cells.subject(name, card), int(steps) if colon else STEPS)


def compare(
    runner: Runner, jobs: tuple[Job, ...], devices: int, ratio: float, turn_seconds: float
) -> Compared:
    """Run a pool on one device and on all, the jobs one by one, and without LMS on all devices.

    Args:
        runner: of the ideals.
        jobs: what is trained.
        devices: how many there are.
        ratio: the largest need of a job over the memory of a device.
        turn_seconds: of the pool's turns.

    Raises:
        LmsError: a model cannot be trained even where memory does not end.
    """
    ideals = Results()
    subjects = list(dict.fromkeys(job.subject for job in jobs))
    runner.run([cells.ideal(subject, ITERATIONS) for subject in subjects], ideals)
    for subject in subjects:
        best = ideals.ideal(subject)[1]
        if not best.ok:
            raise LmsError(f"{subject.title} cannot be trained: {best.reason}")
    need = max(ideals.ideal(subject)[1].need for subject in subjects)
    capacity = int(need / ratio) // cells.PIECE * cells.PIECE
    wanted = [Run(jobs, ONE_BY_ONE, 1, capacity, turn_seconds)]
    wanted += [
        Run(jobs, POOL, number, capacity, turn_seconds) for number in dict.fromkeys((1, devices))
    ]
    runs = {run: _outcome(run, runner) for run in progress.each("running schedules", wanted)}
    run = Run(jobs, WITHOUT_LMS, devices, capacity, turn_seconds)
    compared = Compared(jobs, ideals, runs)
    shares = spread([compared.computing_ns(job) for job in jobs], devices)
    runs[run] = _without_lms(run, shares, runner)
    return compared


def spread(times: list[float], devices: int) -> list[list[int]]:
    """Which jobs each device gets, by their numbers: the longest first, to whom has least to do."""
    shares: list[list[int]] = [[] for _ in range(devices)]
    for job in sorted(range(len(times)), key=lambda job: -times[job]):
        min(shares, key=lambda share: sum(times[job] for job in share)).append(job)
    return shares


def _without_lms(run: Run, shares: list[list[int]], runner: Runner) -> cells.Outcome:
    """Each share on a device and in a process of its own."""
    spans: list[Any] = [[] for _ in run.jobs]
    makespan, failed = 0, []
    for device, share in enumerate(shares):
        if not share:
            continue
        jobs = tuple(run.jobs[job] for job in share)
        outcome = _outcome(replace(run, jobs=jobs, devices=1), runner)
        failed += [] if outcome.ok else [outcome]
        makespan = max(makespan, outcome.figures.get("makespan_ns", 0))
        for job, steps in zip(share, outcome.figures.get("spans", ())):
            spans[job] = [(device, begin, end) for _, begin, end in steps]
    figures = {"makespan_ns": makespan, "spans": spans, "paged_bytes": 0}
    status = max((outcome.status for outcome in failed), key=("oom", "failed").index, default="ok")
    return cells.Outcome(status, "; ".join(outcome.reason for outcome in failed), figures)


def _outcome(run: Run, runner: Runner) -> cells.Outcome:
    path = run.path(runner.folder / "cells", runner.known.engine)
    outcome = cells.read(path) or outcome_of(path, run, lambda: _train(run, runner))
    progress.note(f"{run.title}: {_seconds(outcome)}")
    return outcome


def _train(run: Run, runner: Runner) -> str:
    base, way = environment_variables(), ONE_BY_ONE
    if run.way != WITHOUT_LMS:
        base |= {"PYTORCH_LMS": "1"} | limits(run.capacity, run.devices * cells.HOST_LIMIT)
        way = run.way
    command = [str(runner.environment.python), str(PROGRAM), "--way", way]
    command += ["--devices", str(run.devices), "--turn-seconds", f"{run.turn_seconds:g}"]
    command += [job.title for job in run.jobs]
    variables = simulate.variables(
        runner.built,
        base,
        kernels="timed",
        card=run.jobs[0].subject.card,
        capacity=run.capacity,
        devices=run.devices,
    )
    return printed_by(command, variables)


# --- what is shown ---


def tables(compared: Compared) -> Iterable[Table]:
    """The jobs, and how long all of them took in each way."""
    jobs = tuple(
        (
            job.title,
            f"{compared.ideals.ideal(job.subject)[1].need / GIB:,.1f}",
            f"{compared.ideals.ideal(job.subject)[1].step_ns / 1e6:,.1f}",
            f"{compared.computing_ns(job) / 1e9:,.1f}",
        )
        for job in compared.jobs
    )
    yield Table("Jobs", ("job", "needs GiB", "ideal ms a step", "computing s"), jobs)
    memory = next(iter(compared.runs)).capacity / GIB
    rows = tuple(_row(compared, run) for run in compared.runs)
    headings = ("on", "s", "of one by one", "bound s", "bound of it", "copied GB", "link s")
    yield Table(f"All of them, with {memory:.1f} GiB a device", headings, rows)


def _row(compared: Compared, run: Run) -> tuple[str, ...]:
    outcome = compared.runs[run]
    reference = next(found for other, found in compared.runs.items() if other.way == ONE_BY_ONE)
    name = {ONE_BY_ONE: "one by one", POOL: "a pool", WITHOUT_LMS: "without LMS"}[run.way]
    name += f", {run.devices} device" + ("s" if run.devices > 1 else "")
    bound = compared.bound_ns(run.devices)
    if not outcome.ok:
        status = outcome.status if run.way != WITHOUT_LMS else f"{_fitting(run, outcome)} fit"
        return (name, status, "-", f"{bound / 1e9:,.1f}", "-", "-", "-")
    took = outcome.figures["makespan_ns"]
    share = f"{took / reference.figures['makespan_ns']:.2f}" if reference.ok else "-"
    moved = outcome.figures["paged_bytes"] / 1e9
    link = simulate.card(run.jobs[0].subject.card)["page_locked"]["both"] / 1e9  # in GB per second
    return (
        name,
        f"{took / 1e9:,.1f}",
        share,
        f"{bound / 1e9:,.1f}",
        f"{100 * bound / took:.1f} %",
        f"{moved:,.0f}",
        f"{moved / run.devices / link:,.1f}",
    )


def _fitting(run: Run, outcome: cells.Outcome) -> str:
    """How many jobs did all of their steps."""
    done = [len(spans) == job.steps for job, spans in zip(run.jobs, outcome.figures["spans"])]
    return f"{sum(done)} of {len(done)}"


def reasons(compared: Compared) -> Iterable[str]:
    """Why runs failed, but those that are expected to be out of memory."""
    for run, outcome in compared.runs.items():
        if not outcome.ok and (run.way, outcome.status) != (WITHOUT_LMS, "oom"):
            yield f"{run.title}: {outcome.reason}"


def _seconds(outcome: cells.Outcome) -> str:
    if outcome.ok:
        return f"{outcome.figures['makespan_ns'] / 1e9:,.1f} s"
    return "out of memory" if outcome.status == "oom" else outcome.reason


def write(compared: Compared, folder: Path, command: str) -> Path:
    """Write what pictures are drawn from, and who wants the figures; return the file."""
    rows = [
        {
            "title": run.title,
            "jobs": [job.title for job in run.jobs],
            "bound_ns": compared.bound_ns(run.devices),
            **{name: value for name, value in asdict(run).items() if name != "jobs"},
            "status": outcome.status,
            "reason": outcome.reason,
            **{name: value for name, value in outcome.figures.items() if name != "machine"},
        }
        for run, outcome in compared.runs.items()
    ]
    files.write_text(folder / RESULTS, json.dumps({"command": command, "runs": rows}) + "\n")
    return folder / RESULTS


def draw(environment: Environment, results: Path) -> list[Path]:
    """Draw what `write` wrote; return the pictures.

    Raises:
        LmsError: they cannot be drawn.
    """
    return reporting.pictures(environment, PLOT, str(results))
