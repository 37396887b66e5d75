"""The simulated device: built from `scripts/simcuda/`, switched on by environment variables."""

from __future__ import annotations

import hashlib
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import simcuda
from simcuda import cards

from lms_cli import download, paths, progress, releases
from lms_cli.environments import lms_environment
from lms_cli.environments.lms_environment import Environment
from lms_cli.errors import CompileError, UsageError
from lms_cli.wheel import compile, toolchain

SOURCES = Path(simcuda.__file__).parent
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
RATE_UNITS = {"": 1e0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
NVIDIA = (Path("/dev/nvidia0"), Path("/proc/driver/nvidia"))
SHOWN_LINES = 40
MOST_DEVICES = 16  # that are simulated at once


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


def parse_capacity(text: str) -> int:
    """As `parse_size`, of a device's memory.

    Raises:
        UsageError: it is not a size, or 0.
    """
    size = parse_size(text)
    if size == 0:
        raise UsageError("a device without memory cannot run anything", "Give it some: 64M.")
    return size


def parse_host_memory(option: str, text: str) -> int:
    """As `parse_size`, of the host's memory for what leaves a device.

    Raises:
        UsageError: it is not a size, or 0, by which LMS would choose.
    """
    size = parse_size(text)
    if size == 0:
        raise UsageError(f"{option} {text}: LMS cannot do without", "Give it some: 64G.")
    return size


def parse_rate(text: str) -> float:
    """Bytes per second from text such as 15.75G or 600M, in powers of ten as links are rated.

    Raises:
        UsageError: it is not a rate.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:B(?:/S)?)?", text.strip().upper())
    rate = float(match[1]) * RATE_UNITS[match[2]] if match else 0.0
    if rate <= 0:
        raise UsageError(
            f"{text} is not a bandwidth",
            "Write bytes per second, or a number with K, M, G or T: 15.75G.",
        )
    return rate


def default_device() -> str:
    """`cuda` on a machine with an NVIDIA driver, else `sim`."""
    return "cuda" if any(path.exists() for path in NVIDIA) else "sim"


@cache
def build(environment: Environment) -> Path:
    """The folder with the simulation's libraries for an environment's torch, built if need be.

    Raises:
        CompileError: there is no compiler, or it does not compile.
    """
    toolchain.find_compiler()
    name = hashlib.sha256(str(environment.folder).encode()).hexdigest()[:12]
    folder = paths.home().resolve() / f"simcuda-{name}"
    command = [str(environment.python), str(SOURCES / "build.py"), "--out", str(folder)]
    command += [f"--include={include}" for include in _missing_headers(environment)]
    # It notices by itself what changed.
    with progress.step("building the simulated device", brief=folder.exists()):
        result = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    if result.returncode != 0:
        tail = "\n".join(f"  {line}" for line in result.stdout.splitlines()[-SHOWN_LINES:])
        raise CompileError(f"the simulated device does not build:\n{tail}")
    return folder


def _missing_headers(environment: Environment) -> list[Path]:
    """Folders of those CUDA headers that PyTorch itself does not need installed.

    Raises:
        NetworkError, UsageError: they cannot be had, or not for the environment's torch.
    """
    if any(environment.folder.glob("lib/python3*/site-packages/nvidia/*/include/crt")):
        return []
    version = lms_environment.installed_version(environment).partition("+")[0]
    release = releases.find(version, paths.PATCHES)
    wheels = [download.fetch_locked(release.lock, name) for name in release.cuda_headers]
    return [folder for wheel in wheels for folder in compile.unpack_headers_of(wheel)]


def variables(built: Path, base: dict[str, str], **settings: Any) -> dict[str, str]:
    """Environment variables of a process on the simulated device; settings are simcuda's own."""
    return simcuda.environment(built, base=base, **settings)


def card(name: str) -> dict[str, Any]:
    """What the simulated device knows of a card: its entry of simcuda/cards.json.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in cards.names():
        known = ", ".join(cards.names())
        raise UsageError(f"there is no card {name}", f"The simulated device knows {known}.")
    return cards.card(name)
