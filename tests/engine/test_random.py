"""Programs made at random give the same bits with LMS; see tests/programs/random_programs.py.

More of them: ./scripts/lms test tests/engine/test_random.py -n 2 --random-seeds 120
"""

from __future__ import annotations

import json

import pytest
from support.device import PROGRAMS, Device

STEPS = 1500  # of each program


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("seed", range(1, 1 + metafunc.config.getoption("random_seeds")))


def compare(device: Device, seed: int, *modes: str) -> None:
    """Runs a program without LMS and in modes; asserts that all its digests are the same."""
    program = PROGRAMS / "random_programs.py"
    done = device.run(program, seed, STEPS, "off", *modes, kernels="async", capacity="1G")
    assert done.status == 0, done.stderr
    rows = {row["mode"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert list(rows) == ["off", *modes]
    expected = rows["off"]["digests"]
    for mode, row in rows.items():
        found = row["digests"]
        differing = [i for i in range(len(expected)) if found[i] != expected[i]]
        assert not differing, f"{mode} differs in digest {differing[0]} of {len(expected)}"
        assert (row["memory"]["paged_in"] > 0) == (mode not in ("off", "fits")), mode
        assert mode != "small" or row["memory"]["peak_reserved"] <= row["limit"]


def test_the_same_bits(device: Device, seed: int) -> None:
    compare(device, seed, "fits", "small", "chaos")


def test_the_same_bits_while_the_limit_changes(device: Device, seed: int) -> None:
    compare(device, seed, "storm")
