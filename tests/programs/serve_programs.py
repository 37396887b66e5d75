"""Runs programs on request; see tests/engine/test_programs.py.

A request is {"program": "train", a name of scenarios.SCENARIOS or one that features.find knows,
"run": fields of training.Run for "train", "mode": one of modes.MODES, "limit": bytes}. The answer
is {"result": the program's, as a dictionary, "memory": fields of modes.Memory}.
"""

from __future__ import annotations

import gc
from dataclasses import asdict
from typing import Any

import features
import torch._inductor.compile_fx  # noqa: F401 - what several programs import
from lms_demo.training import make_deterministic
from modes import measure
from scenarios import SCENARIOS
from support.serve import answer
from training import Run, train


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """Runs one program once."""

    def program() -> dict[str, Any]:
        if request["program"] == "train":
            return asdict(train(Run(**request["run"])))
        if "." in request["program"]:
            return features.find(request["program"]).run()
        return SCENARIOS[request["program"]]()

    measured = measure(program, request["mode"], request.get("limit", 0))
    return {"result": measured.result, "memory": asdict(measured.memory)}


if __name__ == "__main__":
    make_deterministic()
    gc.freeze()  # garbage is not looked for in what is imported, before and after each program
    answer(handle)
