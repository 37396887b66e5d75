"""Copies and their order under schedules of the device; see checks/paging.py and relocation.py."""

from __future__ import annotations

from typing import Any

import checked
import pytest
from support.device import Device


@pytest.mark.parametrize("program", ["paging", "relocation"])
@pytest.mark.parametrize(
    "copies",
    [
        {},
        {"copy_bandwidth": 200_000_000},
        {"schedule": "early"},
        {"schedule": "late"},
        {"schedule": "split"},
    ],
    ids=lambda copies: "-".join(map(str, copies.values())) or "free",
)
def test_paging(
    device: Device, subtests: pytest.Subtests, program: str, copies: dict[str, Any]
) -> None:
    results = checked.run(device, program, capacity="256M", devices=2, kernels="async", **copies)
    checked.expect_passed(results, subtests)
