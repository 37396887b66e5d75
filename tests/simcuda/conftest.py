"""Fixtures: the built simulation, and programs run on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import simcuda
from support.device import BUILD

FOLDER = Path(__file__).resolve().parent

# Appended to every program: nothing may have slipped by the simulation.
NOTHING_UNSIMULATED = """
import simcuda as _simcuda
assert _simcuda.stats().unsimulated_launches == 0, _simcuda.unsimulated()
"""


@pytest.fixture(scope="session")
def build_dir() -> Path:
    """The simulation built for the running interpreter's torch."""
    default = FOLDER.parent.parent / ".lms" / "simcuda"
    out = Path(os.environ.get("LMS_SIM_BUILD", default))
    subprocess.run([sys.executable, str(BUILD), "--out", str(out)], check=True)
    return out


@pytest.fixture(scope="session")
def run_simulated(build_dir: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program on the simulation; its asserts are the test.

    Settings are those of simcuda.environment(). `status` is the exit status to expect, `launches`
    allows kernels that are not simulated, `arguments` go to the program, `variables` are added to
    the environment.
    """

    def run(
        program: str,
        *,
        status: int = 0,
        launches: bool = False,
        arguments: tuple[str, ...] = (),
        variables: dict[str, str] | None = None,
        **settings: Any,
    ) -> subprocess.CompletedProcess[str]:
        settings.setdefault("capacity", "256M")
        environment = simcuda.environment(build_dir, **settings)
        environment |= variables or {}
        environment["PYTHONPATH"] += f":{FOLDER}"
        source = textwrap.dedent(program) + ("" if launches else NOTHING_UNSIMULATED)
        done = subprocess.run(
            [sys.executable, "-c", source, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        said = f"{done.stdout}\n{done.stderr}"
        assert done.returncode == status, f"exit status {done.returncode}\n{said}"
        return done

    return run


@pytest.fixture
def simulate(run_simulated: Callable[..., Any]) -> Callable[..., Any]:
    """run_simulated, for one test."""
    return run_simulated


# What programs in timed mode begin with. torch.cuda._sleep counts nanoseconds.
TIMED_TOOLS = """
import sys, torch, simcuda
from simcuda import cards
card = cards.card("A100-SXM-40GB")
MS = 1_000_000

def copy_ns(bytes, kind, direction):
    return round(card["copy_ns"] + 1e9 * bytes / card[kind][direction])

def locked(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, pin_memory=True)

def on_device(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")

def device_takes(work):
    "Nanoseconds from here until the device has done the work, and the host's share of them."
    torch.cuda.synchronize()
    begin = simcuda.virtual_time()
    work()
    host = simcuda.virtual_time() - begin
    return simcuda.device_time() - begin, host

one, two = torch.cuda.Stream(), torch.cuda.Stream()
"""


@pytest.fixture
def timed(run_simulated: Callable[..., Any]) -> Callable[..., Any]:
    """Runs a program with the tools above in timed mode; returns what it printed, JSON."""

    def run(program: str, **settings: Any) -> Any:
        settings = {"card": "A100-SXM-40GB", "capacity": None, **settings}
        done = run_simulated(TIMED_TOOLS + program, kernels="timed", **settings)
        return json.loads(done.stdout) if done.stdout else None

    return run
