"""Long recurrent networks, trained by truncated back-propagation through time."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from lms_bench.workloads.training import Training

LETTERS, WIDTH, LAYERS, LENGTH = 205, 2048, 4, 512  # letters: those of enwik8


class LanguageModel(nn.Module):
    """Layers of LSTM whose state goes on from segment to segment, without its history."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, WIDTH)
        self.layers = nn.ModuleList(nn.LSTM(WIDTH, WIDTH) for _ in range(LAYERS))
        self.dropout, self.guess = nn.Dropout(0.5), nn.Linear(WIDTH, LETTERS)
        self.states = [
            (torch.zeros(1, batch, WIDTH), torch.zeros(1, batch, WIDTH)) for _ in range(LAYERS)
        ]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.letters(tokens))
        for index, layer in enumerate(self.layers):
            x, (hidden, cell) = layer(x, self.states[index])
            self.states[index] = hidden.detach(), cell.detach()
            x = self.dropout(x)
        return self.guess(x)


def long_lstm(batch: int, device: str) -> Training:
    """An iteration is one segment; PyTorch's own LSTM kernels, a step at a time."""
    with torch.device(device):
        model = LanguageModel(batch)
        tokens = torch.randint(LETTERS, (LENGTH + 1, batch))
    text, following = tokens[:-1], tokens[1:].flatten()
    return Training(
        model,
        model.layers,
        torch.optim.SGD(model.parameters(), lr=20),
        lambda: F.cross_entropy(model(text).flatten(0, 1), following),
        clip=0.25,
    )
