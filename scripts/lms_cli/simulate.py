"""The simulated device: built from `tests/simcuda/`, switched on by environment variables."""

from __future__ import annotations

import hashlib
import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from lms_cli import compile, paths, progress
from lms_cli.errors import CompileError, UsageError
from lms_cli.lms_environment import Environment

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
NVIDIA = (Path("/dev/nvidia0"), Path("/proc/driver/nvidia"))
SHOWN_LINES = 40


def parse_size(text: str) -> int:
    """A number of bytes from text such as 64M, 1.5GiB or 1000.

    Raises:
        UsageError: it is not a size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?", text.strip().upper())
    if not match:
        raise UsageError(
            f"{text} is not a size", "Write bytes, or a number with K, M, G or T: 64M."
        )
    return int(float(match[1]) * UNITS[match[2]])


def default_device() -> str:
    """`cuda` on a machine with an NVIDIA driver, else `sim`."""
    return "cuda" if any(path.exists() for path in NVIDIA) else "sim"


def build(environment: Environment) -> Path:
    """The folder with the simulation's libraries for an environment's torch, built if need be.

    Raises:
        CompileError: there is no compiler, or it does not compile.
    """
    compile.find_compiler()
    name = hashlib.sha256(str(environment.folder).encode()).hexdigest()[:12]
    folder = paths.home().resolve() / f"simcuda-{name}"
    command = [str(environment.python), str(paths.SIMCUDA / "build.py"), "--out", str(folder)]
    with progress.step("building the simulated device, unless it is up to date"):
        result = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    if result.returncode != 0:
        tail = "\n".join(f"  {line}" for line in result.stdout.splitlines()[-SHOWN_LINES:])
        raise CompileError(f"the simulated device does not build:\n{tail}")
    return folder


def variables(built: Path, base: dict[str, str], **settings: Any) -> dict[str, str]:
    """Environment variables of a process on the simulated device; settings are simcuda's own."""
    sys.path.insert(0, str(paths.SIMCUDA / "python"))
    try:
        simcuda = importlib.import_module("simcuda")
    finally:
        sys.path.pop(0)
    result: dict[str, str] = simcuda.environment(built, base=base, **settings)
    return result
