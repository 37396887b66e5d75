"""Small models as anybody writes them, each with a batch to train on.

Their weights, gradients and optimizer state take 80 MiB and more, in tensors of a few MiB: needs
far beyond the caching allocator's segments of 20 MiB, so that a device of a third or a quarter of
them still has room for the largest operator. A step takes a fraction of a second on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

CLASSES = 256  # of tokens and of images


class Checkpointed(nn.Module):
    """A model made of blocks; a checkpointed block is computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.checkpointing = False

    def block(self, module: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        if self.checkpointing and self.training:
            return checkpoint(module, *inputs, use_reentrant=False)
        return module(*inputs)


class GPTBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.before_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.before_mlp(x))


class GPT(Checkpointed):
    """A decoder-only transformer with scaled dot product attention."""

    def __init__(self, width: int = 256, layers: int = 12, length: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(CLASSES, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.ModuleList(GPTBlock(width, heads=4) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions
        for block in self.blocks:
            x = self.block(block, x)
        return self.head(self.norm(x)).flatten(0, 1)


class ResidualBlock(nn.Module):
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


class ResNet(Checkpointed):
    """Residual convolutions with batch norm: large activations first, large weights last."""

    # Channels, blocks, stride of the first block.
    STAGES = ((16, 3, 1), (64, 2, 4), (256, 5, 4))

    def __init__(self, stages: Sequence[tuple[int, int, int]] = STAGES) -> None:
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
            x = self.block(block, x)
        return self.head(x.mean((2, 3)))


class LSTM(Checkpointed):
    """Recurrent layers over text."""

    def __init__(self, width: int = 384, layers: int = 5) -> None:
        super().__init__()
        self.tokens = nn.Embedding(CLASSES, width)
        self.layers = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(layers))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for layer in self.layers:
            x = x + self.block(lambda y, layer=layer: layer(y)[0], x)
        return self.head(x).flatten(0, 1)


class Recommender(Checkpointed):
    """Mostly embedding tables, of which a batch touches few rows."""

    ROWS = 12_000  # per table

    def __init__(self, width: int = 64, tables: int = 12) -> None:
        super().__init__()
        self.single = nn.ModuleList(nn.Embedding(self.ROWS, width) for _ in range(tables // 2))
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(self.ROWS, width, mode="sum") for _ in range(tables // 2)
        )
        self.mlp = nn.Sequential(nn.Linear(width * tables, 512), nn.ReLU(), nn.Linear(512, 512))
        self.head = nn.Linear(512, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        found = [table(rows[:, number, 0]) for number, table in enumerate(self.single)]
        found += [bag(rows[:, -number - 1]) for number, bag in enumerate(self.bags)]
        return self.head(self.block(self.mlp, torch.cat(found, dim=1)))


@dataclass(frozen=True)
class Task:
    """A model, what it is given, and how far beyond the device it must be able to go."""

    model: Callable[[], Checkpointed]
    inputs: Callable[[torch.Generator], Tensor]  # on the CPU
    targets: int  # number of
    ratio: float  # peak need over device memory, at least

    def batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Inputs and targets on the CPU."""
        inputs = self.inputs(generator)
        return inputs, torch.randint(CLASSES, (self.targets,), generator=generator)


def _text(batch: int, length: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randint(CLASSES, (batch, length), generator=generator)


def _images(batch: int, size: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randn(batch, 3, size, size, generator=generator)


def _rows(batch: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randint(Recommender.ROWS, (batch, 12, 4), generator=generator)


TASKS = {
    "gpt": Task(GPT, _text(4, 64), targets=4 * 64, ratio=4.0),
    "resnet": Task(ResNet, _images(64, 32), targets=64, ratio=3.0),
    "lstm": Task(LSTM, _text(32, 16), targets=32 * 16, ratio=3.0),
    "recommender": Task(Recommender, _rows(256), targets=256, ratio=3.0),
}

# Larger ones, of which the demonstration's devices hold a quarter.
DEMO_TASKS = {
    "gpt": Task(lambda: GPT(width=512, layers=12), _text(8, 64), targets=8 * 64, ratio=4.0),
    "resnet": Task(
        lambda: ResNet(((32, 6, 1), (64, 4, 2), (128, 4, 2), (256, 4, 2))),
        _images(64, 32),
        targets=64,
        ratio=4.0,
    ),
}
