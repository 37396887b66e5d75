"""Outcomes with round numbers, for tests of what is made of them."""

from __future__ import annotations

from lms_cli.bench.cells import Cell, Outcome, Subject
from lms_cli.bench.running import Results

SUBJECT = Subject("gpt-tiny", 4, "A100-SXM-40GB")
MS = 1_000_000  # nanoseconds
GIB = 1 << 30
IDEAL = Cell(SUBJECT, "ideal", None, 1 << 42, 6)
NEED = 10 * GIB


def cell(rival, ratio):
    return Cell(SUBJECT, rival, ratio, int(NEED / ratio), 6)


def fine(ms, copied=(0.0, 0.0), hidden=None, made=0.0):
    """A run whose iterations took some milliseconds."""
    return Outcome(
        "ok",
        "",
        {
            "steps_ns": [ms * MS] * 6,
            "step_ns": float(ms * MS),
            "h2d_bytes": copied[0],
            "d2h_bytes": copied[1],
            "busy_ns": {"compute": 9.0 * MS, "collective": 2.0 * MS},
            "hidden": hidden,
            "lms_step": {"lms.recompute.bytes": made},
            "peak_reserved_bytes": NEED,
            "peak_page_locked_bytes": 3 * GIB,
            "gantt": {"compute": [[0, 9 * MS]], "h2d": [], "d2h": [[5 * MS, 6 * MS]]},
            "gantt_ns": ms * MS,
            "machine": {"seconds": 1.0},
        },
    )


def results():
    """One of each kind."""
    return Results(
        {
            IDEAL: fine(10),
            cell("lms", 0.9): fine(10),
            cell("lms", 2): fine(16, (4e9, 6e9), 0.25),
            cell("original", 0.9): fine(10),
            cell("original", 2): Outcome("failed", "RuntimeError: no luck", {}),
            cell("checkpoint", 0.9): fine(12.5),
            cell("checkpoint", 2): Outcome("oom", "CUDA out of memory.", {}),
        }
    )
