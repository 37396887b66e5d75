"""Programs made at random give the same bits with LMS; see tests/programs/random_programs.py.

More of them: ./scripts/lms test tests/engine/test_random.py -n 2 --random-seeds 300
"""

from __future__ import annotations

import json

import pytest
from support.device import PROGRAMS, Device

STEPS = 1500  # of each program


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("seed", range(1, 1 + metafunc.config.getoption("random_seeds")))


def test_the_same_bits(device: Device, seed: int) -> None:
    done = device.run(PROGRAMS / "random_programs.py", seed, STEPS, kernels="async", capacity="1G")
    assert done.status == 0, done.stderr
    rows = {row["mode"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert list(rows) == ["off", "fits", "small", "chaos", "storm"]
    expected = rows["off"]["digests"]
    for mode, row in rows.items():
        found = row["digests"]
        differing = [i for i in range(len(expected)) if found[i] != expected[i]]
        assert not differing, f"{mode} differs from digest {differing[0]} of {len(expected)} on"
        assert (row["memory"]["paged_in"] > 0) == (mode not in ("off", "fits")), mode
    assert rows["small"]["memory"]["peak_reserved"] <= rows["small"]["limit"]
