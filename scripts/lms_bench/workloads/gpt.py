"""GPT-2: language modelling (Radford et al., 2019)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from lms_bench.workloads.training import Training, half
from lms_bench.workloads.transformer import Block

WORDS, LENGTH, DROPOUT = 50257, 1024, 0.1


class GPT(nn.Module):
    """A decoder whose last layer shares the embedding's weights."""

    def __init__(
        self,
        words: int,
        width: int,
        heads: int,
        layers: int,
        length: int = LENGTH,
        dropout: float = DROPOUT,
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(width, heads, dropout, causal=True, norm_first=True) for _ in range(layers)
        )
        self.norm, self.guess = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.guess.weight = self.words.weight
        for embedding in (self.words, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.words(tokens) + self.places(places))
        for block in self.blocks:
            x = block(x)
        return self.guess(self.norm(x))


def _training(model: GPT, batch: int, length: int, device: str) -> Training:
    words = model.words.num_embeddings
    tokens = torch.randint(words, (batch, length + 1), device=device)
    text, following = tokens[:, :-1], tokens[:, 1:].flatten()
    return Training(
        model,
        model.blocks,
        torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True),
        lambda: F.cross_entropy(model(text).flatten(0, 1), following),
        autocast=half(),
    )


def gpt2_xl(batch: int, device: str) -> Training:
    """48 layers of width 1,600: 1.6 billion parameters."""
    with torch.device(device):
        model = GPT(WORDS, 1600, 25, 48)
    return _training(model, batch, LENGTH, device)


def gpt_tiny(batch: int, device: str) -> Training:
    """For tests of the benchmark itself: 8 layers of width 256."""
    words = 1000
    with torch.device(device):
        model = GPT(words, 256, 4, 8)
    return _training(model, batch, 256, device)
