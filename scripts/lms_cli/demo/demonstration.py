"""Training a model without LMS, with it, and on an unlimited device, and comparing what was seen.

The program that trains is `scripts/lms_demo/train.py`. It gets `--model`, `--mode
off|on|unlimited`, `--steps` and `--json`, and writes what it saw as JSON. On a real GPU the limit
is in PYTORCH_LMS_LIMIT for all modes but unlimited: a run without LMS keeps to it by PyTorch's own
per-process memory fraction.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lms_cli import paths, progress
from lms_cli.environments.lms_environment import Environment
from lms_cli.errors import LmsError
from lms_cli.programs import Settings, variables

PROGRAM = paths.ROOT / "scripts" / "lms_demo" / "train.py"
PLOT = Path(__file__).with_name("plot.py")
UNLIMITED = 1 << 38  # bytes: address space of a simulated device that never fills
PAGE = 4096  # bytes; the capacity is a multiple
OUT_OF_MEMORY = "oom"
FINISHED = "ok"


@dataclass(frozen=True)
class Outcome:
    """What one training run reported; sizes in bytes."""

    status: str  # ok or oom
    steps: int
    losses: tuple[float, ...]
    weights_sha256: str
    needed_bytes: int  # the most that tensors took at once; 0 unless the device was unlimited
    peak_device_bytes: int  # the most device memory in use
    paged_in_bytes: int
    paged_out_bytes: int

    @staticmethod
    def read(path: Path) -> Outcome:
        """Read a report.

        Raises:
            LmsError: it is incomplete.
        """
        try:
            row = json.loads(path.read_text(encoding="utf-8"))
            return Outcome(
                status=row["status"],
                steps=row["steps"],
                losses=tuple(row["losses"]),
                weights_sha256=row["weights_sha256"],
                needed_bytes=row["needed_bytes"],
                peak_device_bytes=row["peak_device_bytes"],
                paged_in_bytes=row["paged_in_bytes"],
                paged_out_bytes=row["paged_out_bytes"],
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LmsError(
                f"{path} is not a complete report of {PROGRAM.name}: {error!r}"
            ) from error


@dataclass(frozen=True)
class Comparison:
    """The three runs of one model."""

    model: str
    capacity: int  # bytes of device memory for the runs off and on
    unlimited: Outcome
    off: Outcome
    on: Outcome
    report: Path  # of the run with LMS, with its timeline

    @property
    def ratio(self) -> float:
        """Peak need over the device memory used with LMS."""
        return self.unlimited.needed_bytes / max(1, self.on.peak_device_bytes)

    @property
    def weights_identical(self) -> bool:
        """Whether the trained weights are the same to the last bit."""
        return (
            bool(self.on.weights_sha256) and self.on.weights_sha256 == self.unlimited.weights_sha256
        )

    def failures(self, ratio: float) -> Iterator[str]:
        """What was claimed and not seen."""
        if self.unlimited.status != FINISHED:
            yield f"{self.model}: on an unlimited device it ended with {self.unlimited.status}"
        if self.off.status != OUT_OF_MEMORY:
            yield f"{self.model}: without LMS it did not run out of memory ({self.off.status})"
        if self.on.status != FINISHED:
            yield f"{self.model}: with LMS it ended with {self.on.status}"
        elif self.on.losses != self.unlimited.losses or not self.on.losses:
            yield f"{self.model}: losses differ from the unlimited device's"
        if not self.weights_identical:
            yield f"{self.model}: weights differ from the unlimited device's"
        if self.ratio < ratio:
            yield f"{self.model}: it needs {self.ratio:.2f} times the device, not {ratio}"


def compare(
    environment: Environment, model: str, steps: int, device: str, ratio: float
) -> Comparison:
    """Train a model three times, on memory that is its own peak need over `ratio`."""
    unlimited = _train(environment, model, "unlimited", steps, device, None)
    capacity = int(unlimited.needed_bytes / ratio) // PAGE * PAGE
    return Comparison(
        model=model,
        capacity=capacity,
        unlimited=unlimited,
        off=_train(environment, model, "off", steps, device, capacity),
        on=_train(environment, model, "on", steps, device, capacity),
        report=_report(model, "on"),
    )


def _report(model: str, mode: str) -> Path:
    return paths.home().resolve() / "demo" / f"{model}-{mode}.json"


def _train(
    environment: Environment, model: str, mode: str, steps: int, device: str, limit: int | None
) -> Outcome:
    report = _report(model, mode)
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    settings = Settings(
        lms="on" if mode == "on" else "off",
        device=device,
        capacity=limit or UNLIMITED,
        limit=limit if device == "cuda" else None,
    )
    arguments = ["--model", model, "--mode", mode, "--steps", str(steps), "--json", str(report)]
    command = [str(environment.python), str(PROGRAM), *arguments]
    process = variables(environment, settings)
    folders = [str(paths.SCRIPT.parent), *filter(None, [process.get("PYTHONPATH")])]
    process["PYTHONPATH"] = os.pathsep.join(folders)
    size = "unlimited" if limit is None else f"{limit / 2**20:.0f} MiB of"
    with progress.step(f"training {model}, LMS {mode}, {size} device memory"):
        status = subprocess.run(command, env=process).returncode
    if status != 0 or not report.exists():
        raise LmsError(
            f"training {model} with LMS {mode} ended with status {status}",
            "Its output is above. To repeat it: "
            f"PYTHONPATH={paths.SCRIPT.parent} {' '.join(command)}",
        )
    return Outcome.read(report)


def show(comparisons: list[Comparison], device: str) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    title = "the GPU, with a limit" if device == "cuda" else "the simulated device"
    table = Table(title=f"PyTorch LMS on {title}")
    for heading in ("", *(comparison.model for comparison in comparisons)):
        table.add_column(heading, justify="right" if heading else "left")
    rows: tuple[tuple[str, Any], ...] = (
        ("peak need", lambda c: _mib(c.unlimited.needed_bytes)),
        ("device memory", lambda c: _mib(c.capacity)),
        ("LMS off", lambda c: _status(c.off)),
        ("LMS on", lambda c: _status(c.on)),
        ("  last loss", lambda c: f"{c.on.losses[-1]:.6f}" if c.on.losses else "-"),
        ("  paged in", lambda c: _mib(c.on.paged_in_bytes)),
        ("  paged out", lambda c: _mib(c.on.paged_out_bytes)),
        ("  peak device memory", lambda c: _mib(c.on.peak_device_bytes)),
        ("  need / device", lambda c: f"{c.ratio:.2f}x"),
        ("losses identical", lambda c: _yes(c.on.losses == c.unlimited.losses)),
        ("weights identical", lambda c: _yes(c.weights_identical)),
    )
    for name, value in rows:
        table.add_row(name, *(value(comparison) for comparison in comparisons))
    Console().print(table)


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _yes(value: bool) -> str:
    return "yes" if value else "NO"


def _status(outcome: Outcome) -> str:
    return "out of memory" if outcome.status == OUT_OF_MEMORY else f"{outcome.steps} steps"


def draw(environment: Environment, comparison: Comparison) -> Path:
    """Draw device and host memory over the operators of the run with LMS; return the picture.

    Raises:
        LmsError: it cannot be drawn.
    """
    picture = comparison.report.with_name(f"{comparison.model}.png")
    arguments = [
        *("--report", str(comparison.report), "--out", str(picture), "--title", comparison.model),
        *("--capacity", str(comparison.capacity), "--need", str(comparison.unlimited.needed_bytes)),
    ]
    command = [str(environment.python), str(PLOT), *arguments]
    with progress.step(f"drawing {picture.name}", brief=True):
        result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise LmsError(f"the picture cannot be drawn:\n{result.stderr.strip()}")
    return picture
