"""PyTorch's operator database computes the same under chaos as without LMS, to the last bit.

Forward and gradient of samples of every operator, see tests/simcuda/opdb.py; and what LMS makes
again has the bits that the operator gave before. What operators give without LMS is compared with
the CPU in tests/simcuda/test_opdb.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.device import TESTS, Device

PROGRAM = TESTS / "simcuda" / "opdb.py"
SHARDS = 2
NAMES = """
import json
from torch.testing._internal.common_methods_invocations import op_db
print(json.dumps(sorted({op.name for op in op_db})))
"""
SAMPLES = "32"  # of an operator, at most; a few have a thousand, for each combination of options
# Operators of which a sample runs without LMS, of 697, in both shards together.
RUNNING = 681
# Some of their results are memory that nobody wrote: no two runs are alike.
UNWRITTEN = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "linalg.lstsq",
    "linalg.lstsq.grad_oriented",
    "new_empty",
    "new_empty_strided",
}


# Values that are made again and compared where three samples of each operator are run, at least.
COMPARED = 7000


@pytest.mark.parametrize("shard", range(SHARDS))
def test_operators(device: Device, tmp_path: Path, shard: int) -> None:
    if not device.simulated:
        pytest.skip("several operators of a GPU do not give the same bits twice")
    names = device.json("-c", NAMES)[shard::SHARDS]
    off, chaos = (
        sweep(device, tmp_path / f"{lms}.json", names, lms, "--digest", "--samples", SAMPLES)
        for lms in ("0", "chaos")
    )
    different = {
        name: (outcome["message"], chaos[name]["message"])
        for name, outcome in off.items()
        if seen(outcome) != seen(chaos[name])
    }
    assert different == {}
    running = [name for name, outcome in off.items() if outcome["samples"] > 0]
    assert len(running) >= RUNNING // SHARDS - 10  # the shards are not quite the same


def test_what_is_made_again(device: Device, tmp_path: Path) -> None:
    found = sweep(
        device, tmp_path / "report.json", [], "chaos", "--digest", "--verify", "--samples", "3"
    )
    differing = {name: outcome["differing"] for name, outcome in found.items()}
    assert {name: results for name, results in differing.items() if results} == {}
    assert sum(outcome["compared"] for outcome in found.values()) >= COMPARED


def seen(outcome: dict[str, Any]) -> tuple[Any, ...]:
    """What must not depend on LMS."""
    digest = None if outcome["operator"] in UNWRITTEN else outcome["digest"]
    return outcome["status"], outcome["samples"], outcome["dtype"], digest


def sweep(
    device: Device, report: Path, names: list[str], lms: str, *options: str
) -> dict[str, dict[str, Any]]:
    """What the operators did, by name."""
    # Some samples depend on the order of a set.
    env = {"PYTORCH_LMS": lms, "PYTHONHASHSEED": "0"}
    done = device.run(
        PROGRAM,
        "--out",
        report,
        "--operators",
        *names,
        *options,
        capacity="2G",
        env=env,
    )
    assert report.exists(), done.stderr[-2000:]
    return json.loads(report.read_text())["operators"]
