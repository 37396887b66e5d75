"""A pytest plugin for the process that runs upstream's tests: which to run, and how each ended.

UPSTREAM_RECORD names the file for the outcomes, a JSON object per line, written as they come: a
process that dies tells what it died of, and the next one goes on after that. UPSTREAM_ONLY names a
file with the tests to run, a line each; without it UPSTREAM_PART, "K/N", says that those for CUDA
are run which a hash of their names puts into the K-th of N parts.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from pathlib import Path
from typing import Any

# A capture that fails, as some of these mean to, leaves PyTorch's allocator and its generator of
# random numbers in it: every later test of the process would fail.
CAPTURES = re.compile(r"cuda_graph|test_cuda\.py::.*graph")
# Kernels of Triton are for CUDA, whatever the tests are called.
FOR_CUDA = re.compile(r"cuda|test_triton_kernels\.py", re.IGNORECASE)
RANKS = ("passed", "skipped", "failed")  # of a test's phases, the last one counts


def pytest_collection_modifyitems(items: list[Any]) -> None:
    done = {row.get("test") for row in map(json.loads, record().read_text().splitlines())}
    wanted = chosen([item.nodeid for item in items]) - done
    items[:] = [item for item in items if item.nodeid in wanted]


def chosen(names: list[str]) -> set[str]:
    if only := os.environ.get("UPSTREAM_ONLY"):
        return set(Path(only).read_text().splitlines())
    part, parts = map(int, os.environ["UPSTREAM_PART"].split("/"))
    for_cuda = (name for name in names if FOR_CUDA.search(name) and not CAPTURES.search(name))
    return {name for name in for_cuda if zlib.crc32(name.encode()) % parts == part - 1}


def record() -> Path:
    return Path(os.environ["UPSTREAM_RECORD"])


def write(**row: Any) -> None:
    with record().open("a") as stream:
        stream.write(json.dumps(row) + "\n")


_outcomes: dict[str, str] = {}
_messages: dict[str, str] = {}


def pytest_runtest_logstart(nodeid: str) -> None:
    write(test=nodeid, outcome="died")  # unless it says otherwise


def pytest_runtest_logreport(report: Any) -> None:
    before = _outcomes.get(report.nodeid, "passed")
    _outcomes[report.nodeid] = max(before, report.outcome, key=RANKS.index)
    if report.failed:
        _messages[report.nodeid] = report.longreprtext


def pytest_runtest_logfinish(nodeid: str) -> None:
    message = _messages.get(nodeid, "")
    write(test=nodeid, outcome=_outcomes.get(nodeid, "skipped"), message=message)
    if message and is_broken():
        os._exit(1)


def is_broken() -> bool:
    """Whether a kernel has failed: CUDA is of no use to the process from then on."""
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def pytest_sessionfinish(exitstatus: int) -> None:
    import torch

    write(status=int(exitstatus), reclaimed=torch.cuda.memory_stats().get("reclaimed", 0))
