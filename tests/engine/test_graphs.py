"""CUDA graphs with LMS on; see checks/graphs.py."""

from __future__ import annotations

import checked
import pytest
from support.device import Device


@pytest.mark.parametrize("kernels", ["inline", "async"])
def test_graphs(device: Device, subtests: pytest.Subtests, kernels: str) -> None:
    env = {"PYTORCH_LMS": "1"}
    results = checked.run(device, "graphs", capacity="256M", kernels=kernels, env=env)
    checked.expect_passed(results, subtests)
