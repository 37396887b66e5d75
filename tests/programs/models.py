"""Small models as anybody writes them, each with batches to train on.

Their weights, gradients and optimizer state take 80 MiB and more, in tensors of a few MiB: needs
far beyond the caching allocator's segments of 20 MiB, so that a device of a third or a quarter of
them still has room for the largest operator. A step takes a fraction of a second on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from lms_demo.models import CLASSES, LENGTH, ResNet, Task, images, small_gpt, text
from torch import Tensor, nn


class LSTM(nn.Module):
    """Recurrent layers over text."""

    def __init__(self, width: int = 384, layers: int = 5) -> None:
        super().__init__()
        self.tokens = nn.Embedding(CLASSES, width)
        self.blocks = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(layers))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for layer in self.blocks:
            x = x + layer(x)[0]
        return self.head(x)


class Recommender(nn.Module):
    """Mostly embedding tables, of which a batch touches few rows."""

    ROWS = 12_000  # per table

    def __init__(self, width: int = 64, tables: int = 12) -> None:
        super().__init__()
        self.single = nn.ModuleList(nn.Embedding(self.ROWS, width) for _ in range(tables // 2))
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(self.ROWS, width, mode="sum") for _ in range(tables // 2)
        )
        mlp = nn.Sequential(nn.Linear(width * tables, 512), nn.ReLU(), nn.Linear(512, 512))
        self.blocks = nn.ModuleList([mlp])
        self.head = nn.Linear(512, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        found = [table(rows[:, number, 0]) for number, table in enumerate(self.single)]
        found += [bag(rows[:, -number - 1]) for number, bag in enumerate(self.bags)]
        return self.head(self.blocks[0](torch.cat(found, dim=1)))


def _rows(batch: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randint(Recommender.ROWS, (batch, 12, 4), generator=generator)


TASKS = {
    "gpt": Task(lambda: small_gpt(width=256, layers=12), text(4), targets=4 * LENGTH),
    "resnet": Task(
        lambda: ResNet(((16, 3, 1), (64, 2, 4), (256, 5, 4))), images(64, 32), targets=64
    ),
    "lstm": Task(LSTM, text(32, 16), targets=32 * 16),
    "recommender": Task(Recommender, _rows(256), targets=256),
    # With few activations, for Triton's interpreter.
    "short_gpt": Task(lambda: small_gpt(width=768, layers=2), text(1, 4), targets=4),
    "small_images": Task(
        lambda: ResNet(((16, 1, 1), (64, 1, 4), (256, 5, 4))), images(2, 16), targets=2
    ),
}
