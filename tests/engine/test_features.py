"""Features of PyTorch give the same bits with LMS; see tests/programs/features/."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.device import Device
from support.features import Listed, listed
from support.programs import Programs, programs_on

LIBRARIES = "libraries."  # which test_libraries.py runs
FEATURES = [
    pytest.param(
        feature,
        id=feature.name,
        marks=pytest.mark.compatibility(feature.section, feature.title, "works"),
    )
    for feature in listed()
    if not feature.name.startswith(LIBRARIES)
]


@pytest.fixture(scope="module")
def programs(device: Device) -> Iterator[Programs]:
    """Runs features on request."""
    with programs_on(device, devices=2) as programs:
        yield programs


@pytest.mark.parametrize("feature", FEATURES)
def test_feature(device: Device, programs: Programs, feature: Listed) -> None:
    if feature.gpu and device.simulated:
        pytest.skip(f"needs a GPU: {feature.gpu}")
    programs.compare(feature.name, feature.ratio)
