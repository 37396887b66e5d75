"""Only streams, events and synchronisation order work: a missing wait is seen."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

MODES = [
    {"kernels": kernels, **({"schedule": schedule} if schedule else {})}
    for kernels in ("inline", "async")
    for schedule in ("", "early", "late", "split")
]
SOURCE = Path(__file__).with_name("ordering.py").read_text()
PROGRAMS = [
    node.name
    for node in ast.parse(SOURCE).body
    if isinstance(node, ast.FunctionDef) and node.name != "main"
]


@pytest.fixture(scope="module")
def results(run_simulated):
    """What went wrong in each program; one process per mode."""
    found: dict[str, dict[str, str]] = {}

    def get(mode: dict[str, str]) -> dict[str, str]:
        key = json.dumps(mode)
        if key not in found:
            found[key] = dict.fromkeys(PROGRAMS, "the process ended before its results")
            done = run_simulated("import ordering; ordering.main()", poison=2, **mode)
            found[key] = json.loads(done.stdout)
        return found[key]

    return get


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(mode.values()))
def test_order(results, mode, program):
    assert results(mode)[program] == ""


def test_bandwidth_bounds_the_copies_of_one_direction(simulate):
    simulate(
        """
        import torch
        host = torch.ones(8 << 20, dtype=torch.uint8).pin_memory()
        device = torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        device.copy_(host, non_blocking=True)
        end.record()
        end.synchronize()
        assert start.elapsed_time(end) >= 80, start.elapsed_time(end)  # 8 MiB at 100 MiB/s
        """,
        copy_bandwidth=100 << 20,
    )
