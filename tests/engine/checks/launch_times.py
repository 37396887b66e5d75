"""Launches in virtual time while LMS is on and off; prints for how long the device computes.

python launch_times.py lms|inductor     # what is there first
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable

import launches
import simcuda
import torch

KERNELS = "torch._inductor.runtime.triton_heuristics"


def computes(work: Callable[[], object]) -> int:
    """Nanoseconds."""
    torch.cuda.synchronize()
    before = simcuda.busy().compute
    work()
    torch.cuda.synchronize()
    return simcuda.busy().compute - before


def main() -> None:
    if sys.argv[1] == "inductor":
        importlib.import_module(KERNELS)
    x, total = (torch.empty(launches.BYTES // 4, device="cuda") for _ in range(2))
    assert (KERNELS in sys.modules) == (sys.argv[1] == "inductor")
    torch.cuda.set_enabled_lms(True)
    compiled = torch.compile(lambda x: x.mul_(2))
    found = []
    for on in (True, False, True):
        torch.cuda.set_enabled_lms(on)
        compiled(x)
        if on:
            torch.cuda.reclaim_inactive()
        found.append([computes(lambda: launches.launch(total, x)), computes(lambda: compiled(x))])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
