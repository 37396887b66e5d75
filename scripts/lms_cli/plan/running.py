"""Running a script on simulated cards, each time in a process of its own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path

import lms_plan

from lms_cli import files, programs, progress
from lms_cli.bench.cells import HOST_LIMIT, UNLIMITED, Outcome, named
from lms_cli.environments.lms_environment import Environment
from lms_cli.errors import PlanError

RUNNER = Path(lms_plan.__file__).parent / "run_script.py"
TIMEOUT = 1800  # seconds that a run may take
HOW = {
    "ideal": "without a limit",
    "lms": "with LMS",
    "lms_deterministic": "with LMS and cudnn.deterministic",
}
SHOWN_LINES = 8  # of what a script that failed has printed


@dataclass(frozen=True)
class Program:
    """What is planned."""

    words: tuple[str, ...]  # as behind `python`
    environment: Environment  # has the LMS wheel
    overlay: Environment  # the same, or with further packages

    @property
    def name(self) -> str:
        """As tables and messages name it."""
        return self.words[1] if self.words[0] == "-m" else Path(self.words[0]).name


@dataclass(frozen=True)
class Run:
    """One run of it."""

    card: str
    rival: str  # a name of lms_bench.catalogue
    capacity: int = UNLIMITED  # bytes of device memory

    @property
    def _how(self) -> str:
        if self.rival == "ideal" and self.capacity != UNLIMITED:
            return "without LMS"
        return HOW[self.rival]

    @property
    def title(self) -> str:
        """As messages name it."""
        return f"{self.card}, {self._how}"

    @property
    def slug(self) -> str:
        """As files are named."""
        return f"{self.card}-{self._how.replace(' ', '-')}"


@dataclass
class Runner:
    """Runs a program."""

    program: Program
    folder: Path  # for what it prints; exists
    host_memory: int = HOST_LIMIT  # bytes that LMS may use of the host's
    _running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopped: bool = False

    def run(self, run: Run) -> Outcome:
        """What came of a run.

        Raises:
            PlanError: the program ended without a report.
        """
        report = self.folder / f"{run.slug}.json"
        report.unlink(missing_ok=True)
        status = self._execute(run, report)
        try:
            row = json.loads(report.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise self._died(run, status) from None
        outcome = Outcome(row.pop("status"), row.pop("reason", ""), row)
        progress.note(f"{self.program.name} on {run.title}: {summary(outcome)}")
        return outcome

    def log(self, run: Run) -> Path:
        """The file with what a run has printed."""
        return self.folder / f"{run.slug}.log"

    def last_lines(self, run: Run) -> str:
        """Of what it has printed, indented."""
        text = self.log(run).read_text(encoding="utf-8", errors="replace")
        return "\n".join(f"  {line}" for line in text.splitlines()[-SHOWN_LINES:])

    def stop(self) -> None:
        """End what runs, and start no more."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                _kill(process)

    def _execute(self, run: Run, report: Path) -> int:
        """Run it; return its status, 0 if it was not even begun."""
        command = [str(self.program.overlay.python), str(RUNNER), run.rival, str(report)]
        with self.log(run).open("wb") as log:
            with self._lock:
                if self._stopped:
                    return 0
                process = subprocess.Popen(
                    [*command, *self.program.words],
                    env=self._variables(run),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # so that what it starts can be ended with it
                )
                self._running.add(process)
            try:
                return process.wait(TIMEOUT)
            except subprocess.TimeoutExpired:
                raise PlanError(
                    f"{self.program.name} took more than {TIMEOUT // 60} minutes for its first "
                    "training steps",
                    f"What it printed is in {self.log(run)}. Give it less data to prepare, or a "
                    "smaller model.",
                ) from None
            finally:
                _kill(process)
                with self._lock:
                    self._running.discard(process)

    def _variables(self, run: Run) -> dict[str, str]:
        """Of its process: nothing of the caller's that would change its figures."""
        settings = programs.Settings(
            lms="off",  # the runner turns it on where the rival says so
            device="sim",
            capacity=run.capacity,
            kernels="timed",
            card=run.card,
            driver_lock=True,
        )
        found = programs.variables(self.program.environment, settings, self.program.overlay)
        variables = {
            name: value
            for name, value in found.items()
            if not name.startswith("PYTORCH_LMS") and name != "CUDA_VISIBLE_DEVICES"
        }
        variables.setdefault("OMP_NUM_THREADS", "1")  # several run at once
        variables |= {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}
        if named("rival", run.rival).uses_lms:
            variables |= {
                "PYTORCH_LMS_LIMIT": str(run.capacity),
                "PYTORCH_LMS_HOST_LIMIT": str(self.host_memory),
                "PYTORCH_LMS_HOST_LEDGER": "none",
            }
        return variables

    def _died(self, run: Run, status: int) -> PlanError:
        if status == -signal.SIGKILL:
            return PlanError(
                f"{self.program.name} was killed, as the system does where memory is short",
                "Here it needs as much host memory as it would beside a GPU. --parallel 1 runs one "
                f"at a time. What it printed is in {self.log(run)}.",
            )
        return PlanError(
            f"{self.program.name} ended with status {status} before it had trained for long "
            f"enough:\n{self.last_lines(run)}",
            f"Everything that it printed is in {self.log(run)}.",
        )


def summary(outcome: Outcome) -> str:
    """A line for whoever waits."""
    if outcome.status == "short":
        return f"it ended after {outcome.reason}"
    return outcome.summary


def folder_of(program: Program, home: Path) -> Path:
    """The folder for what a program prints: the same for the same command."""
    text = json.dumps([str(Path.cwd()), program.words])
    key = hashlib.sha256(text.encode()).hexdigest()[:8]
    name = "".join(letter if letter.isalnum() else "-" for letter in program.name)
    return home.resolve() / "plan" / f"{name}-{key}"


def make_anew(folder: Path) -> None:
    """Empty, whatever was in it."""
    with files.folder_beside(folder):
        pass


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
