"""BERT: masked language modelling (Devlin et al., 2018)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from lms_bench.workloads.training import Training, half
from lms_bench.workloads.transformer import Block

WORDS, LENGTH, DROPOUT = 30522, 512, 0.1
MASKED = 80  # words to guess of each text, as in the published pre-training


class Bert(nn.Module):
    """An encoder, and the head that guesses the masked words."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.start = nn.Sequential(nn.LayerNorm(width), nn.Dropout(DROPOUT))
        self.blocks = nn.ModuleList(
            Block(width, heads, DROPOUT, causal=False, norm_first=False) for _ in range(layers)
        )
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.guess = nn.Linear(width, WORDS)
        self.guess.weight = self.words.weight

    def forward(self, tokens: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.start(self.words(tokens) + self.places(places))
        for block in self.blocks:
            x = block(x)
        return self.guess(self.head(x.flatten(0, 1)[masked]))


def bert_large(batch: int, device: str) -> Training:
    """24 layers of width 1,024: 335 million parameters."""
    with torch.device(device):
        model = Bert(1024, 16, 24)
        tokens = torch.randint(WORDS, (batch, LENGTH))
        masked = torch.randint(batch * LENGTH, (batch * MASKED,))
    return Training(
        model,
        model.blocks,
        torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True),
        lambda: F.cross_entropy(model(tokens, masked), tokens.flatten()[masked]),
        autocast=half(),
    )
