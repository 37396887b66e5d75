"""Training a model and reporting, bit for bit, what came out. Knows nothing of LMS."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from models import TASKS, Checkpointed, Task
from torch import Tensor, nn
from torch.nn import functional

MICRO_BATCHES = 2  # per step, with accumulation


@dataclass(frozen=True)
class Run:
    """What to train and how."""

    model: str  # of models.TASKS
    optimizer: str  # sgd, adamw_foreach or adamw_fused
    option: str  # plain, autocast, checkpointing or accumulation
    steps: int = 2
    seed: int = 1


@dataclass(frozen=True)
class Outcome:
    """Everything that two runs of the same program must agree on."""

    losses: tuple[str, ...]  # float.hex, one per step
    weights: str  # sha256 of the state dict, buffers too
    optimizer: str  # sha256 of the optimizer's state
    outputs: str  # sha256 of what the model says in inference_mode when trained

    def differences(self, other: Outcome) -> list[str]:
        """Names of the fields that differ."""
        mine, theirs = asdict(self), asdict(other)
        return [name for name in mine if mine[name] != theirs[name]]


def train(run: Run) -> Outcome:
    """Trains on the current CUDA device."""
    task = TASKS[run.model]
    torch.manual_seed(run.seed)
    model = task.model().cuda()
    model.checkpointing = run.option == "checkpointing"
    optimizer = make_optimizer(run.optimizer, model.parameters())
    generator = torch.Generator().manual_seed(run.seed)
    autocast = run.option == "autocast"
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, enabled=autocast)
    losses = []
    for _ in range(run.steps):
        loss = torch.zeros((), device="cuda")
        for _ in range(MICRO_BATCHES if run.option == "accumulation" else 1):
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
                part = compute_loss(model, task, generator)
            scaler.scale(part).backward()
            loss += part.detach()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    outputs = infer(model, task, generator)
    state = {"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
    return Outcome(tuple(losses), digest(model.state_dict()), digest(state), digest(outputs))


def make_deterministic() -> None:
    """Makes runs comparable to the last bit: no operator may depend on timing or free memory."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False


def make_optimizer(name: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of a `Run`."""
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, weight_decay=1e-4)
    kind = name.removeprefix("adamw_")
    return torch.optim.AdamW(parameters, lr=1e-3, foreach=kind == "foreach", fused=kind == "fused")


def compute_loss(model: Checkpointed, task: Task, generator: torch.Generator) -> Tensor:
    """The loss of the next batch."""
    inputs, targets = task.batch(generator)
    return functional.cross_entropy(model(inputs.cuda()).float(), targets.cuda())


def infer(model: Checkpointed, task: Task, generator: torch.Generator) -> Tensor:
    """What the model says of the next batch."""
    model.eval()
    with torch.inference_mode():
        return model(task.batch(generator)[0].cuda())


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
