"""Trains on request; see tests/engine/test_programs.py.

A request is {"run": fields of training.Run, "mode": one of modes.MODES, "limit": bytes}, the answer
{"outcome": fields of training.Outcome, "memory": fields of modes.Memory}.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from modes import measure
from support.serve import answer
from training import Run, train


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """Trains once."""
    run = Run(**request["run"])
    measured = measure(lambda: train(run), request["mode"], request.get("limit", 0))
    return {"outcome": asdict(measured.result), "memory": asdict(measured.memory)}


if __name__ == "__main__":
    answer(handle)
