"""Fixtures of the engine's tests."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from lms_cli import paths, releases
from lms_cli.environments import lms_environment
from support.device import Device

LOCK = paths.LOCKS / "libraries.lock"


@pytest.fixture(scope="session")
def with_libraries(device: Device) -> Device:
    """Runs programs in an environment with the libraries."""
    if version("torch").partition("+")[0] != releases.default(paths.PATCHES).version:
        pytest.skip("the libraries are locked for the default release")
    base = lms_environment.Environment(Path(sys.prefix))
    python = lms_environment.with_lock(base, LOCK).python
    return replace(device, python=str(python))
