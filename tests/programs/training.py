"""Training a model and reporting, bit for bit, what came out. Knows nothing of LMS."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from lms_bench.rivals.checkpoint import recompute
from lms_demo.models import Task
from lms_demo.training import compute_loss, digest, make_optimizer
from models import TASKS
from torch import Tensor, nn

MICRO_BATCHES = 2  # per step, with accumulation


@dataclass(frozen=True)
class Run:
    """What to train and how."""

    model: str  # of models.TASKS
    optimizer: str  # sgd, adamw_foreach or adamw_fused
    option: str  # plain, autocast, checkpointing, accumulation or compiled
    steps: int = 2
    seed: int = 1


@dataclass(frozen=True)
class Outcome:
    """Everything that two runs of the same program must agree on."""

    losses: tuple[str, ...]  # float.hex, one per step
    weights: str  # sha256 of the state dict, buffers too
    optimizer: str  # sha256 of the optimizer's state
    outputs: str  # sha256 of what the model says in inference_mode when trained
    held: int  # bytes that may not leave the device after the last step

    def differences(self, other: Outcome) -> list[str]:
        """Names of the fields that differ."""
        mine, theirs = asdict(self), asdict(other)
        return [name for name in mine if mine[name] != theirs[name]]


def train(run: Run) -> Outcome:
    """Trains on the current CUDA device."""
    task = TASKS[run.model]
    torch.manual_seed(run.seed)
    model = task.model().cuda()
    if run.option == "checkpointing":
        recompute(model.blocks)
    trained = torch.compile(model) if run.option == "compiled" else model
    optimizer = make_optimizer(run.optimizer, model.parameters())
    generator = torch.Generator().manual_seed(run.seed)
    autocast = run.option == "autocast"
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, enabled=autocast)
    losses = []
    for _ in range(run.steps):
        loss = torch.zeros((), device="cuda")
        for _ in range(MICRO_BATCHES if run.option == "accumulation" else 1):
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
                part = compute_loss(trained, task, generator)
            scaler.scale(part).backward()
            loss += part.detach()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    held = torch.cuda.lms.stats()["pinned_bytes.all.current"]
    outputs = infer(model, task, generator)
    state = {"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
    weights = digest(model.state_dict())
    return Outcome(tuple(losses), weights, digest(state), digest(outputs), held)


def infer(model: nn.Module, task: Task, generator: torch.Generator) -> Tensor:
    """What the model says of the next batch."""
    model.eval()
    with torch.inference_mode():
        return model(task.batch(generator)[0].cuda())
