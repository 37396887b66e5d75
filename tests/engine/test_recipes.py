"""Bytes that are dropped and made again; see checks/recipes.py."""

from __future__ import annotations

import checked
import pytest
from support.device import Device


@pytest.mark.parametrize("kernels", ["inline", "async"])
def test_recipes(device: Device, subtests: pytest.Subtests, kernels: str) -> None:
    results = checked.run(device, "recipes", capacity="256M", devices=2, kernels=kernels)
    checked.expect_passed(results, subtests)
