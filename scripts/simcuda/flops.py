"""Floating-point operations of operators, for the timing mode."""

from __future__ import annotations

import ctypes
import json
import logging
import sys
from typing import Any

_FORMULA = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_char_p)
_kept: list[Any] = []  # what the library calls must not be collected


def attach(operators: ctypes.CDLL) -> None:
    """Gives the operator library PyTorch's own formulas, those of torch.utils.flop_counter."""
    import torch

    # It would warn, where there is no Triton, that it cannot count in Triton's kernels.
    logger = logging.getLogger("torch.utils.flop_counter")
    level = logger.level
    logger.setLevel(logging.ERROR)
    from torch.utils.flop_counter import flop_registry

    logger.setLevel(level)

    def count(call: bytes) -> float:
        try:
            return _count(flop_registry, torch.ops.aten, json.loads(call))
        except Exception as error:
            print(f"simcuda: no FLOPs for {call.decode()}: {error}", file=sys.stderr)
            return 0.0

    names = [f"aten::{packet.__name__}" for packet in flop_registry]
    formula = _FORMULA(count)
    _kept.append(formula)
    operators.simopsSetFormula.argtypes = [ctypes.c_char_p, _FORMULA]
    operators.simopsSetFormula("\n".join(names).encode(), formula)


def _give_each_head_its_own(arguments: list[list[Any]]) -> None:
    """Where heads of attention share keys and values, which takes no fewer FLOPs."""
    shapes = {name: value for name, _, value in arguments if name in ("query", "key", "value")}
    for name in ("key", "value"):
        if name in shapes and len(shapes["query"]) == len(shapes[name]) == 4:
            shapes[name][1] = shapes["query"][1]


def _count(registry: dict[Any, Any], operators: Any, call: dict[str, Any]) -> float:
    """The formula of one call; where it wants tensors, their shapes serve."""
    formula = registry[getattr(operators, call["op"])]
    _give_each_head_its_own(call["arguments"])
    positional = [value for _, only_named, value in call["arguments"] if not only_named]
    named = {name: value for name, only_named, value in call["arguments"] if only_named}
    results = call["results"]
    return float(
        formula(*positional, **named, out_val=results[0] if len(results) == 1 else results)
    )
