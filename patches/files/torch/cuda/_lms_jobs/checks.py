"""Checks of what users say."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch


def is_number(value: Any) -> bool:
    """Whether it is a number to count with."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def checked_per_step(value: Any) -> tuple[float, str]:
    """What a job does in a step: a number and what it is of."""
    if not (isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str)):
        raise TypeError(
            f'per_step must be a number and what it is of, as (64, "images"): {value!r}'
        )
    if not is_number(value[0]) or value[0] <= 0:
        raise ValueError(f"per_step must begin with a number above 0, got {value[0]!r}")
    return value


def device_indices(devices: int | Iterable[int] | None) -> list[int]:
    """The indices of devices, from what a user says."""
    there_are = torch.cuda.device_count()
    if devices is None:
        return list(range(there_are))
    if isinstance(devices, int) and not isinstance(devices, bool):
        if not 1 <= devices <= there_are:
            raise ValueError(f"there are {there_are} CUDA devices, and a pool was to use {devices}")
        return list(range(devices))
    if isinstance(devices, (bool, str)) or not isinstance(devices, Iterable):
        raise TypeError(f"devices must be an int or several, got {type(devices).__name__}")
    indices = list(devices)
    for index in indices:
        if isinstance(index, bool) or not isinstance(index, int):
            raise TypeError(f"devices must be indices, got {type(index).__name__}")
        if not 0 <= index < there_are:
            raise ValueError(f"there is no CUDA device {index} among {there_are}")
    if not indices or len(set(indices)) < len(indices):
        raise ValueError(f"devices must be different ones, and one at least, got {indices}")
    return indices
