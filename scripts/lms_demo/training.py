"""What programs share that train to the same bits each time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lms_demo.models import Task


def make_deterministic() -> None:
    """Makes runs comparable to the last bit: no operator may depend on timing or free memory."""
    # As torch.use_deterministic_algorithms does, which takes seconds to import Inductor.
    torch.set_deterministic_debug_mode("warn")
    os.environ["TORCHINDUCTOR_DETERMINISTIC"] = "1"
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False


def make_optimizer(name: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Of that name: sgd, adamw_foreach or adamw_fused."""
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, weight_decay=1e-4)
    kind = name.removeprefix("adamw_")
    return torch.optim.AdamW(parameters, lr=1e-3, foreach=kind == "foreach", fused=kind == "fused")


def compute_loss(model: nn.Module, task: Task, generator: torch.Generator) -> Tensor:
    """The loss of the next batch."""
    inputs, targets = task.batch(generator)
    guesses = model(inputs.cuda()).float().flatten(0, -2)
    return functional.cross_entropy(guesses, targets.cuda())


def digest(value: Any) -> str:
    """Sha256 of a tensor, or of all in a nest of dictionaries and lists, with names and types."""
    result = hashlib.sha256()
    _add(result, value)
    return result.hexdigest()


def _add(result: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        result.update(f"{value.dtype}{tuple(value.shape)}".encode())
        plain = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        result.update(plain.flatten().view(torch.uint8).numpy())
    elif isinstance(value, dict):
        for name, element in value.items():
            result.update(repr(name).encode())
            _add(result, element)
    elif isinstance(value, list | tuple):
        for element in value:
            _add(result, element)
    else:
        result.update(repr(value).encode())
