"""Small models as anybody writes them, each with batches to train on.

Their weights, gradients and optimizer state take 80 MiB and more, in tensors of a few MiB: needs
far beyond the caching allocator's segments of 20 MiB, so that a device of a third or a quarter of
them still has room for the largest operator. A step takes a fraction of a second on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from lms_bench.workloads.transformer import Block
from lms_demo.models import CLASSES, LENGTH, ResNet, Task, images, small_gpt, text
from torch import Tensor, nn
from torch.nn import functional


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


class ViT(nn.Module):
    """An encoder of image patches, as in `lms_bench`, with few of them."""

    PATCH = 8  # pixels each way

    def __init__(self, width: int, heads: int, layers: int, side: int) -> None:
        super().__init__()
        self.patches = nn.Linear(3 * self.PATCH**2, width)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, (side // self.PATCH) ** 2 + 1, width))
        self.blocks = nn.ModuleList(
            Block(width, heads, 0.0, causal=False, norm_first=True) for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        pixels = functional.pixel_unshuffle(images, self.PATCH)
        x = self.patches(pixels.flatten(2).transpose(1, 2))
        x = torch.cat((self.class_token.expand(len(x), -1, -1), x), 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class LlamaBlock(nn.Module):
    """Attention with rotated queries, several of which share a key, and a gated perceptron."""

    HEAD = 64  # numbers in a query

    def __init__(self, width: int, keys: int) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.out = _linear(width, width), _linear(width, width)
        self.key, self.value = _linear(width, keys * self.HEAD), _linear(width, keys * self.HEAD)
        self.gate, self.up = _linear(width, 3 * width), _linear(width, 3 * width)
        self.down = _linear(3 * width, width)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        y = self.before_attention(x)
        queries, keys, values = (
            part(y).unflatten(-1, (-1, self.HEAD)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(
            _rotated(queries, angles), _rotated(keys, angles), values,
            is_causal=True, enable_gqa=True,
        )  # fmt: skip
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = self.before_mlp(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """A decoder that knows places by rotary embedding."""

    def __init__(self, width: int, keys: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(CLASSES, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, keys) for _ in range(layers))
        self.norm, self.guess = nn.RMSNorm(width), _linear(width, CLASSES)
        half = LlamaBlock.HEAD // 2
        self.register_buffer("rates", 10_000.0 ** (-torch.arange(half) / half))

    def forward(self, tokens: Tensor) -> Tensor:
        angles = torch.arange(tokens.shape[1], device=tokens.device)[:, None] * self.rates
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x, angles)
        return self.guess(self.norm(x))


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def _rotated(x: Tensor, angles: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)


def _rows(batch: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randint(Recommender.ROWS, (batch, 12, 4), generator=generator)


TASKS = {
    "gpt": Task(lambda: small_gpt(width=256, layers=12), text(4), targets=4 * LENGTH),
    "resnet": Task(
        lambda: ResNet(((16, 3, 1), (64, 2, 4), (256, 5, 4))), images(64, 32), targets=64
    ),
    "lstm": Task(LSTM, text(32, 16), targets=32 * 16),
    "recommender": Task(Recommender, _rows(256), targets=256),
    # With few activations, for Triton's interpreter and for matrices of bfloat16 on a CPU.
    "short_gpt": Task(lambda: small_gpt(width=512, layers=2), text(1, 4), targets=4),
    "short_llama": Task(lambda: Llama(width=768, keys=3, layers=1), text(1, 4), targets=4),
    "short_lstm": Task(LSTM, text(4, 4), targets=4 * 4),
    "small_vit": Task(lambda: ViT(512, 8, 2, side=16), images(1, 16), targets=1),
    "small_images": Task(lambda: ResNet(((16, 1, 1), (384, 3, 16))), images(2, 16), targets=2),
}
