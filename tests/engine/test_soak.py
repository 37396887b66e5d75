"""Hours of training, evaluation, checkpoints and failing user code; see tests/programs/soak.py.

An hour of it: ./scripts/lms test tests/engine/test_soak.py --soak-rounds 6000
"""

from __future__ import annotations

import json

import pytest
from support.device import PROGRAMS, Device

MIB = 1 << 20


@pytest.mark.parametrize("uses_disk", [False, True])
def test_soak(
    device: Device,
    pytestconfig: pytest.Config,
    request: pytest.FixtureRequest,
    uses_disk: bool,
) -> None:
    """The same numbers as without LMS, and nothing grows: not on the devices, nor on the host."""
    if device.count < 2:
        pytest.skip("it takes two devices")
    rounds = pytestconfig.getoption("soak_rounds")
    folder = [str(request.getfixturevalue("disk_folder"))] if uses_disk else []
    done = device.run(
        PROGRAMS / "soak.py", rounds, *folder, devices=2, kernels="async", schedule="split",
        capacity="1G", timeout=120 + 10 * rounds,
    )  # fmt: skip
    assert done.status == 0, done.stderr
    off, small = map(json.loads, done.stdout.splitlines())
    differing = [i for i in range(rounds) if off["digests"][i] != small["digests"][i]]
    assert not differing, f"rounds {differing[:5]} differ"
    assert small["memory"]["peak_reserved"] <= small["limit"]
    assert small["memory"]["paged_in"] > rounds * MIB
    assert (small["read"] > 0) == uses_disk
    allocated = [[left["allocated"] for left in row["left"]] for row in (off, small)]
    assert allocated[0] == allocated[1]
    half = len(small["left"]) // 2
    for name, spare in (("managed", 50), ("process", 200 * MIB)):
        seen = [left[name] for left in small["left"]]
        assert max(seen[half:]) <= 1.1 * max(seen[:half]) + spare, f"{name} grows: {seen}"
