"""What all workloads are: a model in training, of which rivals change parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


@dataclass
class Training:
    """One model, its optimizer and a batch that stays on the device."""

    model: nn.Module
    blocks: Sequence[nn.Module]  # what activation checkpointing recomputes, one at a time
    optimizer: torch.optim.Optimizer
    loss: Callable[[], torch.Tensor]  # a forward pass on the batch
    autocast: torch.dtype | None = None
    clip: float | None = None  # the norm to which gradients are clipped
    around_forward: Callable[[], AbstractContextManager[object]] = nullcontext
    stepping: Any = None  # that of torch.cuda.lms.step_in_backward(optimizer), if it is used
    scaler: torch.amp.GradScaler = field(init=False)

    def __post_init__(self) -> None:
        self.scaler = torch.amp.GradScaler("cuda", enabled=self.autocast is torch.float16)

    def step(self) -> None:
        """One iteration. Asks the device for nothing, so the host may run ahead."""
        self.optimizer.zero_grad()
        enabled = self.autocast is not None
        with self.around_forward(), torch.autocast("cuda", self.autocast, enabled=enabled):
            loss = self.loss()
        self.backward(loss)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def backward(self, loss: torch.Tensor) -> None:
        """To gradients that are clipped."""
        if self.stepping and (self.clip is not None or self.scaler.is_enabled()):
            self.stepping.backward(loss, max_norm=self.clip, scaler=self.scaler)
            return
        self.scaler.scale(loss).backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)

    def untrained(self) -> list[str]:
        """Names of the parameters that got no gradient though they should have."""
        if self.stepping:
            return []  # it has let all gradients go
        return [
            name
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad and parameter.grad is None
        ]


def half() -> torch.dtype:
    """The 16-bit type that the card computes fast: bfloat16 from Ampere on."""
    return torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16
