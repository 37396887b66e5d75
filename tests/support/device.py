"""The device that programs under test see: simulated, or a real GPU.

A program runs in a child process of its own, since what it does to CUDA cannot be undone in one.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import simcuda

from support.child import Child, Finished, failure

TESTS = Path(__file__).resolve().parent.parent
PROGRAMS = TESTS / "programs"
SCRIPTS = TESTS.parent / "scripts"
BUILD = Path(simcuda.__file__).with_name("build.py")  # of the simulation
TIMEOUT = 600  # seconds: a program that takes longer hangs
# Settings of a parent that would change what a child does.
FOREIGN = (
    "PYTORCH_LMS",
    "PYTORCH_LMS_LIMIT",
    "PYTORCH_LMS_HOST_LIMIT",
    "PYTORCH_LMS_HOST_LEDGER",
    "PYTORCH_LMS_DISK",
    "PYTORCH_LMS_CONF",
    "PYTORCH_LMS_TRACE",
    "PYTORCH_ALLOC_CONF",
)


@dataclass(frozen=True)
class Device:
    """Where programs run."""

    kind: str  # "sim" or "cuda"
    build: Path | None  # of the simulation, with kind "sim"
    python: str = sys.executable

    @property
    def simulated(self) -> bool:
        """Whether capacity, faults and the like can be chosen."""
        return self.kind == "sim"

    @property
    def count(self) -> int:
        """How many there can be."""
        if self.simulated:
            return 16
        code = "import torch; print(torch.cuda.device_count())"
        return int(self.json("-c", code))

    def environment(
        self,
        *,
        capacity: int | str | None = None,
        env: dict[str, str] | None = None,
        **settings: Any,
    ) -> dict[str, str]:
        """Environment variables of a program.

        Args:
            capacity: bytes of each simulated device, or text such as "64M"; None is
                simcuda.environment's default.
            env: variables to add.
            settings: simcuda.environment's: devices, kernels, card, faults and so on. A real GPU
                has none of these: there they are ignored.
        """
        base = {name: value for name, value in os.environ.items() if name not in FOREIGN}
        base["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(SCRIPTS)])
        # The tests run side by side; more threads would fight for the cores.
        base["OMP_NUM_THREADS"] = "1"
        # Without it cuBLAS may choose another algorithm in the next run. The default of a large GPU
        # is more than these programs take: 32 MiB for each stream of each thread, and for cuBLASLt.
        base["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
        base["CUBLASLT_WORKSPACE_SIZE"] = "128"
        # Nor do they share limits of host memory.
        base["PYTORCH_LMS_HOST_LEDGER"] = "none"
        base.update(env or {})
        if not self.simulated:
            return base
        return simcuda.environment(self.build, capacity=capacity, base=base, **settings)

    def run(self, *command: Any, timeout: float | None = TIMEOUT, **settings: Any) -> Finished:
        """Runs `python COMMAND...` to its end, whatever its exit status.

        Args:
            command: a program and its arguments, or "-c" and code.
            timeout: seconds, None for ever.
            settings: of `environment`.
        """
        arguments = [self.python, *(str(part) for part in command)]
        try:
            done = subprocess.run(
                arguments,
                env=self.environment(**settings),
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired as error:
            written = (error.stderr or b"").decode(errors="replace")
            raise failure(arguments, f"did not end in {timeout} seconds", written) from None
        return Finished(arguments, done.returncode, done.stdout, done.stderr)

    def json(self, *command: Any, **settings: Any) -> Any:
        """Runs `python COMMAND...`, which must succeed; returns the last line it printed as JSON.

        Raises:
            ChildError: it failed; the message ends with what it wrote on standard error.
        """
        return self.run(*command, **settings).json()

    @contextlib.contextmanager
    def serve(self, *command: Any, **settings: Any) -> Iterator[Child]:
        """Starts `python COMMAND...`, a program that answers requests until the context closes."""
        arguments = [self.python, *(str(part) for part in command)]
        with Child(arguments, self.environment(**settings), TIMEOUT) as child:
            yield child


def find(kind: str, root: Path) -> Device:
    """The device that the tests use; builds the simulation if nobody did."""
    if kind == "cuda":
        return Device("cuda", None)
    built = os.environ.get("LMS_SIM_BUILD")
    if built:
        return Device("sim", Path(built))
    out = root / ".lms" / "simcuda"
    done = subprocess.run([sys.executable, BUILD, "--out", out], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"the simulated device does not build:\n{done.stderr}")
    return Device("sim", out)
