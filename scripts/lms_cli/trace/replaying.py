"""Replaying a trace: the engine's policies in virtual time, in the program of build/replay/."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lms_cli import files, paths, progress
from lms_cli.errors import LmsError, OutOfMemoryError, UsageError
from lms_cli.trace.reader import Trace
from lms_cli.wheel import compile, toolchain

PROGRAM = "lms-replay"
SOURCES = paths.BUILD / "replay"
NO_POLICY = 2  # exit status; what there is stands on stderr
DETAIL = Path("aten/src/ATen/cuda/detail")


@dataclass(frozen=True)
class Machine:
    """What a trace is replayed on; bandwidths in bytes per second."""

    capacity: int  # bytes of device memory
    in_bandwidth: float  # host to device
    out_bandwidth: float
    both_bandwidth: float | None = None  # of both at once, in sum; None: neither slows the other
    memory_bandwidth: float = 1e12  # of the device's memory
    latency_ns: float = 10_000  # of a copy
    launch_ns: float = 2_000  # of a copy within the device
    operator_ns: float = 0  # that the host takes for each
    host: int = 0  # bytes of the host's memory; 0: enough
    disk: int = 0  # bytes of a disk; 0: there is none
    disk_read: float = 7e9  # it does one thing at a time
    disk_write: float = 6e9

    @property
    def sum_bandwidth(self) -> float:
        """Of both directions at once."""
        return self.both_bandwidth or self.in_bandwidth + self.out_bandwidth

    def words(self) -> list[str]:
        """For the program: build/replay/machine.h says what it reads."""
        numbers = {
            "capacity": self.capacity,
            "h2d": self.in_bandwidth,
            "d2h": self.out_bandwidth,
            "both": self.sum_bandwidth,
            "memory": self.memory_bandwidth,
            "latency_ns": self.latency_ns,
            "launch_ns": self.launch_ns,
            "operator_ns": self.operator_ns,
            "host": self.host,
            "disk": self.disk,
            "disk_read": self.disk_read,
            "disk_write": self.disk_write,
        }
        return [f"{name}={number!r}" for name, number in numbers.items()]


def machine_of(card: dict[str, Any]) -> Machine:
    """A card of the simulated device, as its cards.json has it."""
    locked = card["page_locked"]
    return Machine(
        card["memory"],
        locked["h2d"],
        locked["d2h"],
        locked["both"],
        card["bandwidth"] * card["bandwidth_efficiency"],
        card["copy_ns"],
        card["launch_ns"],
        card["operator_ns"],
        disk_read=card["disk"]["read"],
        disk_write=card["disk"]["write"],
    )


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What the measured part of a trace needs; times in microseconds, all steps together."""

    trace: Trace
    machine: Machine
    steps: int
    compute_us: float  # the ideal: unlimited memory
    bound_in_bytes: int  # moved by farthest-next-use eviction
    bound_out_bytes: int
    ordered_us: float  # no engine that obeys program order is faster: docs/traces.md

    @property
    def bound_us(self) -> float:
        """The reference bound: compute or one of the copy directions alone."""
        return max(
            self.compute_us,
            1e6 * self.bound_in_bytes / self.machine.in_bandwidth,
            1e6 * self.bound_out_bytes / self.machine.out_bandwidth,
        )

    @property
    def floor_us(self) -> float:
        """The larger of the bound and of what program order forbids."""
        return max(self.bound_us, self.ordered_us)


@dataclass(frozen=True, kw_only=True)
class Result(Bounds):
    """The measured part of a replay."""

    policy: str
    recompute: bool  # bytes could be made again
    time_us: float
    in_bytes: int
    out_bytes: int
    moved_bytes: int  # within the device
    read_bytes: int  # from disk
    written_bytes: int  # to disk
    made_bytes: int  # again
    making_us: float  # of the operators that did
    copying_us: float  # of both directions
    hidden_us: float  # the part of it during which an operator ran
    demanded_us: float  # waited for page-ins that were asked for when needed,
    late_us: float  # for page-ins that were asked for ahead,
    memory_us: float  # for page-outs,
    host_us: float  # for the host

    @property
    def stalls_us(self) -> dict[str, float]:
        """How long operators waited, by cause."""
        return {
            "page-in demanded": self.demanded_us,
            "page-in late (prefetched)": self.late_us,
            "memory (page-out)": self.memory_us,
            "host": self.host_us,
        }

    def report(self) -> dict[str, Any]:
        """Everything, as --json prints it: means of a step; shares are of 1."""
        return {
            "name": self.trace.name,
            "card": self.trace.card,
            "operators": self.trace.operators,
            "peak_bytes": self.trace.peak_bytes,
            "policy": self.policy,
            "recompute": self.recompute,
            **asdict(self.machine),
            "steps": self.steps,
            "step_us": self.time_us / self.steps,
            "ideal_us": self.compute_us / self.steps,
            "bound_us": self.bound_us / self.steps,
            "ordered_us": self.ordered_us / self.steps,
            "floor_us": self.floor_us / self.steps,
            "share_of_ideal": share(self.compute_us, self.time_us),
            "share_of_bound": share(self.bound_us, self.time_us),
            "share_of_floor": share(self.floor_us, self.time_us),
            "in_bytes": self.in_bytes / self.steps,
            "out_bytes": self.out_bytes / self.steps,
            "moved_bytes": self.moved_bytes / self.steps,
            "read_bytes": self.read_bytes / self.steps,
            "written_bytes": self.written_bytes / self.steps,
            "made_bytes": self.made_bytes / self.steps,
            "making_us": self.making_us / self.steps,
            "bound_in_bytes": self.bound_in_bytes / self.steps,
            "bound_out_bytes": self.bound_out_bytes / self.steps,
            "copying_us": self.copying_us / self.steps,
            "hidden_us": self.hidden_us / self.steps,
            "hidden_share": share(self.hidden_us, self.copying_us),
            "stalls_us": {cause: time / self.steps for cause, time in self.stalls_us.items()},
        }


def share(part: float, whole: float) -> float:
    """The part of a whole; of nothing, all."""
    return part / whole if whole else 1.0


def bounds(trace: Trace, machine: Machine) -> Bounds:
    """What no engine can beat, and no policy is run.

    Raises:
        CompileError: the program does not compile.
    """
    return Bounds(trace=trace, machine=machine, **_run(trace, machine, "none", recompute=False))


def replay(trace: Trace, machine: Machine, policy: str, *, recompute: bool) -> Result:
    """Run a policy on a trace; with `recompute` it may make bytes again.

    Raises:
        CompileError: the program does not compile.
        OutOfMemoryError: an operator's storages do not fit together.
        UsageError: there is no such policy.
    """
    row = _run(trace, machine, policy, recompute=recompute)
    return _result(trace, machine, policy, recompute, row)


def replay_step(
    trace: Trace, machine: Machine, policy: str, step: int | None, *, recompute: bool
) -> tuple[Result, dict[str, Any]]:
    """The same, and what happened in one step, from 0 on: _lms_timeline/recorded.py reads it.

    Args:
        trace: what is replayed.
        machine: on what.
        policy: by which policy.
        step: None, or one that the trace has not: the last one.
        recompute: bytes may be made again.

    Raises:
        CompileError, OutOfMemoryError, UsageError: as `replay` does.
    """
    word = "last" if step is None else str(step)
    row = _run(trace, machine, policy, recompute=recompute, step=word)
    timeline = row.pop("timeline", {})
    return _result(trace, machine, policy, recompute, row), timeline


def _result(
    trace: Trace, machine: Machine, policy: str, recompute: bool, row: dict[str, Any]
) -> Result:
    if lack := row.get("out_of_memory"):
        raise OutOfMemoryError(
            f"out of memory at line {lack['line']} of the trace: "
            f"{lack['wanted_bytes']:,} contiguous bytes are wanted, and at least "
            f"{lack['missing_bytes']:,} are missing when all that may leave has left",
            "What one operator uses must fit in --capacity together.",
        )
    return Result(trace=trace, machine=machine, policy=policy, recompute=recompute, **row)


def _run(
    trace: Trace, machine: Machine, policy: str, *, recompute: bool, step: str = "none"
) -> dict[str, Any]:
    """What the program prints; `step`: that of which it prints a timeline."""
    command = [str(program()), policy, "on" if recompute else "off", step, *machine.words()]
    done = subprocess.run(command, input=memoryview(trace.words).cast("B"), capture_output=True)
    message = done.stderr.decode(errors="replace").strip() or f"status {done.returncode}"
    if done.returncode == NO_POLICY:
        raise UsageError(f"there is no policy {policy}", f"There are: {message}.")
    if done.returncode != 0:
        raise LmsError(f"the replay failed: {message}", "This is a mistake in it or the policy.")
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def folder() -> Path:
    """Where the program is made and kept."""
    return paths.home().resolve() / "replay"


def tree() -> Path:
    """Where CMake builds it; a checkout has its own, since CMake keeps to its source folder."""
    return folder() / f"tree-{hashlib.sha256(str(SOURCES).encode()).hexdigest()[:12]}"


@cache
def program() -> Path:
    """The compiled program, from the cache if nothing it depends on changed.

    Raises:
        CompileError: there is no compiler, or it does not compile.
    """
    compiler = toolchain.find_compiler()
    engine = paths.PATCHES / "files"
    sources = sorted([*SOURCES.iterdir(), *(engine / DETAIL).glob("LMS*")])
    parts = [(path.name, path.read_bytes()) for path in sources if path.is_file()]
    version = toolchain.compiler_version(compiler)
    key = hashlib.sha256(repr((parts, version)).encode()).hexdigest()[:16]
    target = folder() / key
    if not (target.exists() and tree().exists()):
        with files.locked(tree()), progress.step(f"compiling {PROGRAM}") as advance:
            settings = {"CMAKE_CXX_COMPILER": str(compiler), "LMS_SOURCE_DIR": str(engine)}
            built = compile.run_cmake(SOURCES, tree(), PROGRAM, PROGRAM, settings, advance=advance)
            with files.folder_beside(target) as temporary:
                shutil.copy(built, temporary / PROGRAM)
    return target / PROGRAM
