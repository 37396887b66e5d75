"""Recommendation (DLRM, Naumov et al., 2019): large embedding tables, small perceptrons."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from lms_bench.workloads.training import Training

TABLES, ROWS, WIDTH = 26, 1_000_000, 128  # 26 categories and 13 numbers, as in Criteo's data
NUMBERS, LOOKUPS = 13, 10  # lookups: rows of each table that a sample sums


def _perceptron(*widths: int) -> nn.Sequential:
    return nn.Sequential(
        *(
            layer
            for inputs, outputs in pairwise(widths)
            for layer in (nn.Linear(inputs, outputs), nn.ReLU())
        )
    )


class DLRM(nn.Module):
    """Products of all pairs of embeddings go to a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(ROWS, WIDTH, mode="sum") for _ in range(TABLES))
        self.bottom = _perceptron(NUMBERS, 512, 256, WIDTH)
        pairs = (TABLES + 1) * TABLES // 2
        self.top = _perceptron(WIDTH + pairs, 1024, 1024, 512, 256)
        self.head = nn.Linear(256, 1)
        first, second = torch.tril_indices(TABLES + 1, TABLES + 1, -1, device="cpu")
        self.register_buffer("pairs", first * (TABLES + 1) + second)

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        dense = self.bottom(numbers)
        rows = [table(chosen) for table, chosen in zip(self.tables, categories)]
        vectors = torch.stack([dense, *rows], 1)
        products = (vectors @ vectors.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.head(self.top(torch.cat((dense, products), 1))).squeeze(1)


def dlrm(batch: int, device: str) -> Training:
    """Gradients of the tables are dense, as PyTorch makes them unless asked otherwise."""
    with torch.device(device):
        model = DLRM()
        numbers = torch.randn(batch, NUMBERS)
        categories = torch.randint(ROWS, (TABLES, batch, LOOKUPS))
        labels = torch.rand(batch)
    return Training(
        model.to(device),
        [model.bottom, model.top],
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda: F.binary_cross_entropy_with_logits(model(numbers, categories), labels),
    )
