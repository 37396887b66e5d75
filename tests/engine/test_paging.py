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


def test_moves_in_expandable_segments(device: Device, subtests: pytest.Subtests) -> None:
    env = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    results = checked.run(device, "relocation", capacity="256M", devices=2, env=env)
    checked.expect_passed(results, subtests)


CONFIGURATIONS = [
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "large_segment_size_mb:32",
    "max_split_size_mb:21",
    "garbage_collection_threshold:0.5",
    "pinned_use_cuda_host_register:True,pinned_num_register_threads:2",
    "expandable_segments:True",
]


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_configurations(device: Device, subtests: pytest.Subtests, configuration: str) -> None:
    env = {"PYTORCH_ALLOC_CONF": configuration}
    results = checked.run(device, "configurations", capacity="1G", env=env)
    checked.expect_passed(results, subtests)
