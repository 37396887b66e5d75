"""A language model and an image classifier, each with batches to train on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from lms_bench.workloads.gpt import GPT
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 256  # of tokens and of images
LENGTH = 64  # tokens


class ResidualBlock(nn.Module):
    """Two convolutions and a skip."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if (inputs, stride) != (outputs, 1):
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu_(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Residual convolutions with batch norm: large activations first, large weights last."""

    def __init__(self, stages: Sequence[tuple[int, int, int]]) -> None:
        """`stages`: channels, blocks, and the stride of the first block, of each."""
        super().__init__()
        inputs = stages[0][0]
        self.stem = nn.Conv2d(3, inputs, 3, 1, 1)
        self.blocks = nn.ModuleList()
        for channels, blocks, first_stride in stages:
            for number in range(blocks):
                stride = first_stride if number == 0 else 1
                self.blocks.append(ResidualBlock(inputs, channels, stride))
                inputs = channels
        self.head = nn.Linear(inputs, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


@dataclass(frozen=True)
class Task:
    """A model and what it is given."""

    model: Callable[[], nn.Module]  # with the `blocks` that checkpointing recomputes
    inputs: Callable[[torch.Generator], Tensor]  # on the CPU
    targets: int  # number of

    def batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Inputs and targets on the CPU."""
        inputs = self.inputs(generator)
        return inputs, torch.randint(CLASSES, (self.targets,), generator=generator)


def small_gpt(width: int, layers: int) -> GPT:
    """A GPT over few tokens."""
    return GPT(CLASSES, width, heads=4, layers=layers, length=LENGTH)


def text(batch: int, length: int = LENGTH) -> Callable[[torch.Generator], Tensor]:
    """Random tokens."""
    return lambda generator: torch.randint(CLASSES, (batch, length), generator=generator)


def images(batch: int, size: int) -> Callable[[torch.Generator], Tensor]:
    """Random pixels."""
    return lambda generator: torch.randn(batch, 3, size, size, generator=generator)


TASKS = {
    "gpt": Task(lambda: small_gpt(width=512, layers=12), text(8), targets=8 * LENGTH),
    "resnet": Task(
        lambda: ResNet(((32, 8, 1), (64, 4, 2), (128, 4, 2), (256, 4, 2))),
        images(64, 32),
        targets=64,
    ),
}
