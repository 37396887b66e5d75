"""Fixtures: the built simulation, and programs run on it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(FOLDER / "python"))

import simcuda  # noqa: E402

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
    subprocess.run([sys.executable, str(FOLDER / "build.py"), "--out", str(out)], check=True)
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
        environment["PYTHONPATH"] += f":{Path(__file__).parent}"
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
