"""Any call of the CUDA runtime may fail; see checks/faults.py."""

from __future__ import annotations

import checked
import pytest
from support.device import Device

MEMORY = ["cudaMalloc", "cudaHostRegister", "cudaMemGetInfo", "cudaStreamCreate"]
COPIES = ["cudaMemcpyAsync", "cudaEventRecord", "cudaStreamWaitEvent"]
EVENTS = ["cudaEventCreate", "cudaEventQuery", "cudaEventSynchronize", "cudaStreamSynchronize"]


@pytest.mark.parametrize(
    ("mode", "kernels", "tried", "functions"),
    [
        pytest.param("on", "inline", 12, [*MEMORY, *COPIES], id="limit"),
        pytest.param("on", "inline", 8, EVENTS, id="limit-events"),
        pytest.param("chaos", "inline", 8, [*MEMORY, *COPIES], id="chaos"),
        pytest.param("on", "async", 4, COPIES, id="limit-async"),
    ],
)
def test_single_failures(
    device: Device,
    subtests: pytest.Subtests,
    mode: str,
    kernels: str,
    tried: int,
    functions: list[str],
) -> None:
    if not device.simulated:
        pytest.skip("only the simulated device fails on request")
    done = device.run(
        checked.CHECKS / "faults.py", mode, tried, *functions, capacity="64M", kernels=kernels
    )
    assert done.status == 0, done.stderr
    checked.expect_passed(checked.read(done), subtests)
