"""Libraries give the same bits with LMS; see tests/programs/features/libraries.py."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from lms_cli import lms_environment, paths, releases
from support import features
from support.device import Device
from support.programs import Programs, programs_on

LOCK = paths.LOCKS / "libraries.lock"
FEATURES = [one for one in features.listed() if one.needs_libraries]


@pytest.fixture(scope="module")
def programs(device: Device) -> Iterator[Programs]:
    """Runs features in an environment with the libraries."""
    if version("torch").partition("+")[0] != releases.default(paths.PATCHES).version:
        pytest.skip("the libraries are locked for the default release")
    base = lms_environment.Environment(Path(sys.prefix))
    python = lms_environment.with_lock(base, LOCK).python
    with programs_on(replace(device, python=str(python)), capacity="2G") as programs:
        yield programs


@pytest.mark.parametrize("feature", features.parameters(FEATURES))
def test_library(device: Device, programs: Programs, feature: features.Listed) -> None:
    features.compare(device, programs, feature)
