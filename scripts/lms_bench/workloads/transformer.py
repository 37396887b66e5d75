"""The block of BERT, GPT-2 and ViT."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Attention and a multilayer perceptron of four times the width, each with a skip."""

    def __init__(
        self, width: int, heads: int, dropout: float, *, causal: bool, norm_first: bool
    ) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.causal, self.norm_first = causal, norm_first
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, dropout_p=dropout)
        mixed = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return F.dropout(mixed, dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, part in zip(self.norms, (self.attention, self.mlp)):
            x = x + part(norm(x)) if self.norm_first else norm(x + part(x))
        return x
