"""Options and fixtures of all tests."""

from __future__ import annotations

import os

import pytest
from support.device import Device, find

# Its assertions say what differs, as those in tests do.
pytest.register_assert_rewrite("support.programs")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        choices=("sim", "cuda"),
        default=os.environ.get("LMS_DEVICE", "sim"),
        help="where programs run: the simulated device, or a real GPU (default: LMS_DEVICE or sim)",
    )
    parser.addoption(
        "--upstream-every",
        type=int,
        default=400,
        metavar="N",
        help="run one in N of PyTorch's own tests (default: 400; 1, which takes hours, is all)",
    )


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> Device:
    """Runs programs on the device under test."""
    return find(pytestconfig.getoption("device"), pytestconfig.rootpath)
