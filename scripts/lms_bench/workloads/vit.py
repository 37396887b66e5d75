"""Vision transformers (Dosovitskiy et al., 2020)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from lms_bench.workloads.training import Training, half
from lms_bench.workloads.transformer import Block

CLASSES, SIDE, PATCH = 1000, 224, 16


class ViT(nn.Module):
    """Patches, a class token, an encoder."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, PATCH, PATCH)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, (SIDE // PATCH) ** 2 + 1, width))
        self.blocks = nn.ModuleList(
            Block(width, heads, 0.0, causal=False, norm_first=True) for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.class_token.expand(len(x), -1, -1), x), 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def vit_l16(batch: int, device: str) -> Training:
    """24 layers of width 1,024: 304 million parameters."""
    with torch.device(device):
        model = ViT(1024, 16, 24)
        images = torch.randn(batch, 3, SIDE, SIDE)
        labels = torch.randint(CLASSES, (batch,))
    return Training(
        model,
        model.blocks,
        torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True),
        lambda: F.cross_entropy(model(images), labels),
        autocast=half(),
    )
