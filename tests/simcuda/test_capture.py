"""Stream capture: its rules, and graphs that are run; see capturing.py."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("capturing.py").read_text()
PROGRAMS = [
    node.name
    for node in ast.parse(SOURCE).body
    if isinstance(node, ast.FunctionDef) and not node.args.args and node.name != "main"
]


@pytest.fixture(scope="module", params=["inline", "async"])
def results(run_simulated, request):
    """What went wrong in each program; one process per mode."""
    found = dict.fromkeys(PROGRAMS, "the process ended before its results")
    done = run_simulated("import capturing; capturing.main()", kernels=request.param, poison=2)
    return found | json.loads(done.stdout)


@pytest.mark.parametrize("program", PROGRAMS)
def test_capture(results, program):
    assert results[program] == ""


def test_graphs_are_refused_in_virtual_time(simulate):
    done = simulate(
        """
        import torch
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                torch.ones(3, device="cuda")
        except RuntimeError as error:
            assert "not simulated" in str(error), error
        else:
            raise AssertionError("captured")
        """,
        kernels="timed",
        card="A100-SXM-40GB",
        capacity=None,
    )
    assert "simcuda: cudaStreamBeginCapture in virtual time is not simulated" in done.stderr
