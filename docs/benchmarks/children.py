"""Processes of their own for what the programs here measure, on the same simulated device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import simcuda


def run(program: str, *arguments: str, card: str, capacity: int | None, **variables: str) -> Any:
    """Run a program in virtual time; return what it prints, from JSON.

    Args:
        program: its path.
        arguments: its own.
        card: a name in simcuda's cards.json.
        capacity: bytes of device memory. None: the card's.
        variables: of its environment, to add to those of this process.

    Raises:
        CalledProcessError: it failed.
    """
    environment = simcuda.environment(
        Path(os.environ["SIMCUDA_OPS_LIBRARY"]).parent.parent,
        kernels="timed",
        card=card,
        capacity=capacity,
        base=dict(os.environ),
    )
    environment["PYTORCH_LMS_HOST_LEDGER"] = "none"  # on a host of its own
    command = [sys.executable, program, *arguments]
    done = subprocess.run(
        command, env=environment | variables, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout)
