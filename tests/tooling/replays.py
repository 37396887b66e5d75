"""Replays of tiny traces, for tests.

A page takes 1,000 us to copy, as long as most operators compute: 990 us at 10 GB/s and 10 us of
latency.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lms_cli.trace import reader
from lms_cli.trace.replaying import Machine, Result, replay
from synthetic_trace import HEADER, PAGE, alloc, free, op, write

ROOM = 9_900_032  # bytes of device memory that a page takes
BANDWIDTH = 10e9  # bytes per second, each way
DEMANDED, LATE, MEMORY = (
    "page-in demanded",
    "page-in late (prefetched)",
    "memory (page-out)",
)


@dataclass
class Replays:
    """Replays rows with the policy `original`, or with actions that a test names."""

    folder: Path
    scripted: Path

    def original(self, rows: list[Any], pages: float, **below: float) -> Result:
        trace = reader.read(write(self.folder / "trace", [HEADER, *rows]))
        return replay(trace, machine(pages, **below), "original", recompute=True)

    def ours(self, rows: list[Any], pages: float, *actions: str, **rates: float) -> Result:
        trace = reader.read(write(self.folder / "trace", [HEADER, *rows]))
        on = machine(pages, **rates)
        command = [self.scripted, *on.words(), *actions]
        done = subprocess.run(command, input=trace.words.tobytes(), capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
        row = json.loads(done.stdout)
        assert "out_of_memory" not in row
        return Result(trace=trace, machine=on, policy="scripted", recompute=True, **row)


def machine(pages: float, **rates: float) -> Machine:
    return Machine(int(pages * ROOM), BANDWIDTH, BANDWIDTH, **rates)


def below(pages: int, read: float = 9.9e9, write: float = 9.9e9) -> dict[str, float]:
    """Of a machine: memory of the host for so many pages, and a disk; it takes 1,000 us for one."""
    return {"host": pages * PAGE, "disk": 1 << 40, "disk_read": read, "disk_write": write}


def check(result: Result, time: float, in_pages: int, out_pages: int, **stalls: float) -> None:
    row = result.report()
    assert row["step_us"] == pytest.approx(time, abs=1e-6)
    assert (row["in_bytes"], row["out_bytes"]) == (in_pages * PAGE, out_pages * PAGE)
    causes = {
        "demanded": DEMANDED,
        "late": LATE,
        "memory": MEMORY,
        "host": "host",
    }
    expected = {cause: stalls.get(name, 0) for name, cause in causes.items()}
    assert row["stalls_us"] == pytest.approx(expected, abs=1e-6)


# One page has to leave for another, and comes back.
SWAP = [alloc(0), op("", "0"), alloc(1), op("", "1"), op("0", "")]
# Page 0 leaves twice; whether it was written in between decides what the second time costs.
TWICE_READ = [
    *(alloc(0), op("", "0"), alloc(1), op("", "1"), free(1), op("0", "")),
    *(alloc(2), op("", "2"), free(2), op("0", "")),
]
TWICE_WRITTEN = [row if row != op("0", "") else op("0", "0") for row in TWICE_READ]
