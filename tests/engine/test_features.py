"""Features of PyTorch give the same bits with LMS; see tests/programs/features/."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support import features
from support.device import Device
from support.programs import Programs, programs_on

FEATURES = [one for one in features.listed() if not one.needs_libraries]


@pytest.fixture(scope="module")
def programs(device: Device) -> Iterator[Programs]:
    """Runs features on request."""
    with programs_on(device, devices=2) as programs:
        yield programs


@pytest.mark.parametrize("feature", features.parameters(FEATURES))
def test_feature(device: Device, programs: Programs, feature: features.Listed) -> None:
    features.compare(device, programs, feature)
