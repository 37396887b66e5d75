"""The cells of the benchmark: what is run, what came of it, and where that is kept.

A cell's file is named after a hash of all that its figures depend on, so a run that was killed goes
on where it stopped, and a changed engine runs again what it may change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lms_bench
from lms_bench import catalogue

from lms_cli import files, simulate
from lms_cli.environments.lms_environment import Environment
from lms_cli.errors import LmsError, UsageError

FOLDER = Path(lms_bench.__file__).parent
PROGRAM = FOLDER / "run_cell.py"
RATIOS = (0.9, 1.25, 1.5, 2.0, 3.7, 8.0)  # peak need over device memory
PIECE = 2 << 20  # bytes; a capacity is a multiple, as the caching allocator's segments are
UNLIMITED = 1 << 42  # bytes: address space of a simulated device that never fills
HOST_LIMIT = 512 << 30  # bytes for what LMS pages out, so that no machine's own memory matters


@dataclass(frozen=True)
class Subject:
    """What is trained, and on what: all its cells are compared with one ideal."""

    workload: str
    batch: int
    card: str
    compiled: bool = False  # the model, by Inductor
    host: int = HOST_LIMIT  # bytes of the host's memory
    disk: int = 0  # bytes on a disk; 0: there is none
    devices: int = 1  # over which it is sharded; the batch is of each

    @property
    def title(self) -> str:
        """As tables and plots name it."""
        how = f", FSDP2 over {self.devices}" if self.devices > 1 else ""
        how += ", compiled" if self.compiled else ""
        how += f", {self.host / 2**30:g} GiB of host memory" if self.host != HOST_LIMIT else ""
        how += " and a disk" if self.disk else ""
        return f"{self.workload}, batch {self.batch}, {self.card}{how}"

    @property
    def slug(self) -> str:
        """As file names have it."""
        how = f"-{self.devices}" if self.devices > 1 else ""
        how += "-compiled" if self.compiled else ""
        how += "-disk" if self.disk else ""
        return f"{self.workload}-{self.batch}-{self.card}{how}"


@dataclass(frozen=True)
class Cell:
    """One training run."""

    subject: Subject
    rival: str
    ratio: float | None  # of the ideal's need to `capacity`; None: the device never fills
    capacity: int  # bytes of device memory
    iterations: int

    @property
    def title(self) -> str:
        """As progress and errors name it."""
        at = "" if self.ratio is None else f" at {self.ratio:g}"
        return f"{self.subject.title}: {self.rival}{at}"

    def path(self, folder: Path, fingerprint: str) -> Path:
        """The file for its outcome."""
        ratio = "" if self.ratio is None else f"-{self.ratio:g}"
        return folder / f"{self.subject.slug}-{self.rival}{ratio}-{key_of(self, fingerprint)}.json"


def key_of(run: Any, fingerprint: str) -> str:
    """For the name of a file: another one for each dataclass of settings and each fingerprint."""
    return hashlib.sha256(json.dumps([fingerprint, asdict(run)]).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Outcome:
    """What run_cell.py said of a cell; see there for the figures."""

    status: str  # ok, oom or failed
    reason: str  # why it is not ok
    figures: dict[str, Any]  # times in virtual nanoseconds, sizes in bytes

    @property
    def ok(self) -> bool:
        """Whether there are figures."""
        return self.status == "ok"

    @property
    def summary(self) -> str:
        """A line for whoever waits."""
        if self.ok:
            return f"{self.step_ns / 1e6:,.1f} ms per iteration"
        return "out of memory" if self.status == "oom" else f"failed: {self.reason}"

    @property
    def step_ns(self) -> float:
        """Virtual time of an iteration."""
        return float(self.figures["step_ns"])

    @property
    def need(self) -> int:
        """Bytes of device memory that a card must have for it to run: what the allocator took."""
        return int(self.figures["peak_reserved_bytes"])

    @property
    def moved(self) -> tuple[float, float]:
        """Bytes of an iteration to the device and from it."""
        return float(self.figures["h2d_bytes"]), float(self.figures["d2h_bytes"])

    @property
    def made(self) -> float:
        """Bytes that LMS made again in an iteration."""
        return float(self.figures["lms_step"].get("lms.recompute.bytes", 0))

    @property
    def host(self) -> int:
        """Peak of page-locked host memory, in bytes."""
        return int(self.figures["peak_page_locked_bytes"])


def subject(
    workload: str,
    card_name: str,
    compiled: bool = False,
    host: int = HOST_LIMIT,
    disk: int = 0,
    devices: int = 1,
) -> Subject:
    """What `NAME` or `NAME@BATCH` and the name of a card stand for.

    Raises:
        UsageError: there is no such workload or card, or the batch is no number of samples.
    """
    name, at, batch = workload.partition("@")
    found = named("workload", name)
    if at and not (batch.isdecimal() and int(batch) > 0):
        raise UsageError(
            f"{workload}: {batch!r} is no batch", f"Write a number of samples: {name}@32."
        )
    simulate.card(card_name)
    size = int(batch) if at else found.batch
    return Subject(name, size, card_name, compiled, host, disk, devices)


def named(what: str, name: str) -> Any:
    """A workload or a rival of the catalogue.

    Raises:
        UsageError: there is none of that name.
    """
    entries = {"workload": catalogue.WORKLOADS, "rival": catalogue.RIVALS}[what]
    try:
        return catalogue.named(what, entries, name)
    except ValueError as error:
        raise UsageError(str(error), "See `lms bench --list`.") from None


def ideal(of: Subject, iterations: int) -> Cell:
    """The run that the others are compared with."""
    return Cell(of, "ideal", None, UNLIMITED, iterations)


def rivals(of: Subject, names: Iterable[str], ratios: Iterable[float], best: Outcome) -> list[Cell]:
    """The runs on less memory than the ideal's need, or on a little more."""
    iterations = len(best.figures["steps_ns"])
    return [
        Cell(of, name, ratio, int(best.need / ratio) // PIECE * PIECE, iterations)
        for ratio in ratios
        for name in names
        if not named("rival", name).unlimited
    ]


@dataclass(frozen=True)
class Fingerprints:
    """Hashes of the programs that figures come from."""

    engine: str  # of everything
    rest: str  # of everything but LMS, for rivals that do without

    def of(self, rival: str) -> str:
        """What a rival's figures depend on."""
        return self.engine if named("rival", rival).uses_lms else self.rest


def fingerprints(environment: Environment, built: Path) -> Fingerprints:
    """Hashes for an environment and the simulated device built for it.

    Raises:
        LmsError: the environment has no list of torch's files.
    """
    records = sorted(environment.site_packages.glob("torch-*.dist-info/RECORD"))
    if not records:
        raise LmsError(
            f"{environment.folder} does not say which files its torch has",
            "Install the LMS wheel there again, or leave --environment out.",
        )
    simulation = [*simulate.SOURCES.glob("*.py"), simulate.SOURCES / "cards.json"]
    used = [*FOLDER.rglob("*.py"), *simulation, *built.glob("lib/*.so")]
    rest = "".join(f"{path.name} {files.sha256_of(path)}\n" for path in sorted(used))
    release = records[0].parent.name
    return Fingerprints(
        engine=hashlib.sha256((rest + files.sha256_of(records[0])).encode()).hexdigest(),
        rest=hashlib.sha256((rest + release).encode()).hexdigest(),
    )


def write(path: Path, cell: Any, outcome: Outcome) -> None:
    """Keep the outcome of a cell, or of what else is run; a killed run leaves none or all of it."""
    files.write_text(path, json.dumps({"cell": asdict(cell), "outcome": asdict(outcome)}))


def read(path: Path) -> Outcome | None:
    """The outcome in a cell's file; None if there is none that can be read."""
    try:
        return Outcome(**json.loads(path.read_text(encoding="utf-8"))["outcome"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def parse(text: str) -> Outcome:
    """What run_cell.py printed.

    Raises:
        LmsError: it is not that.
    """
    try:
        row = json.loads(text)
    except ValueError:
        row = None
    if not isinstance(row, dict) or row.get("status") not in ("ok", "oom", "failed"):
        raise LmsError(f"{PROGRAM.name} printed no outcome but {text[:200]!r}")
    return Outcome(row.pop("status"), row.pop("reason", ""), row)
