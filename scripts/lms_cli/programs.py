"""Running PyTorch programs: which variables turn LMS and the simulated device on."""

from __future__ import annotations

import os
from dataclasses import dataclass

from lms_cli import simulate
from lms_cli.environments.lms_environment import Environment

DEFAULT_CAPACITY = 1 << 30  # bytes of a simulated device
MODES = {"off": None, "on": "1", "chaos": "chaos"}  # value of PYTORCH_LMS


@dataclass(frozen=True)
class Settings:
    """How to run a program."""

    lms: str  # a key of MODES
    device: str  # cuda or sim
    capacity: int | None = None  # bytes of each simulated device
    devices: int = 1  # simulated
    kernels: str = "inline"  # simulated: inline, async or timed
    card: str | None = None  # whose times are simulated, with timed
    driver_lock: bool = False  # whether calls wait while memory is page-locked, with timed
    limit: int | None = None  # bytes of device memory that LMS may use


def variables(
    environment: Environment, settings: Settings, overlay: Environment | None = None
) -> dict[str, str]:
    """The environment variables of a program.

    Args:
        environment: has the LMS wheel; the simulated device is built for it.
        settings: how to run the program.
        overlay: the environment that runs it, if that is one with further packages on top.

    Raises:
        CompileError: the simulated device does not build.
    """
    result = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTORCH_LMS", "PYTORCH_LMS_LIMIT", "PYTHONHOME")
    }
    folder = (overlay or environment).folder
    result["PATH"] = f"{folder / 'bin'}{os.pathsep}{result.get('PATH', '')}"
    result["VIRTUAL_ENV"] = str(folder)
    mode = MODES[settings.lms]
    if mode is not None:
        result["PYTORCH_LMS"] = mode
    if settings.limit is not None:
        result["PYTORCH_LMS_LIMIT"] = str(settings.limit)
    if settings.device == "sim":
        default = None if settings.card else DEFAULT_CAPACITY
        return simulate.variables(
            simulate.build(environment),
            result,
            capacity=default if settings.capacity is None else settings.capacity,
            devices=settings.devices,
            kernels=settings.kernels,
            card=settings.card,
            driver_lock=settings.driver_lock,
        )
    return result
