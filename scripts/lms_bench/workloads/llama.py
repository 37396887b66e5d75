"""Llama (Touvron et al., 2023): fine-tuning of all weights, or of low-rank adapters only."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from lms_bench.workloads.training import Training

WORDS = 32000
RANK = 16  # of the adapters


@dataclass(frozen=True)
class Shape:
    """Of a model, and of the texts that it is trained on."""

    width: int
    heads: int
    groups: int  # of heads that share keys and values
    hidden: int
    layers: int
    length: int


SHAPE_7B = Shape(4096, 32, 32, 11008, 32, length=2048)
SHAPE_70B = Shape(8192, 64, 8, 28672, 80, length=4096)


class LowRank(nn.Module):
    """A frozen linear layer and what is learnt on top of it (LoRA, Hu et al., 2021)."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen
        alike = {"bias": False, "device": frozen.weight.device, "dtype": frozen.weight.dtype}
        self.down = nn.Linear(frozen.in_features, RANK, **alike)
        self.up = nn.Linear(RANK, frozen.out_features, **alike)
        self.scale = 2.0  # alpha / rank, as most recipes have it

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + self.scale * self.up(self.down(x))


class Block(nn.Module):
    """Attention with rotated queries and keys, and a gated perceptron."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, self.heads, self.groups = shape.width, shape.heads, shape.groups
        narrow = width // self.heads * self.groups
        self.before_attention, self.before_mlp = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.key = _linear(width, width), _linear(width, narrow)
        self.value, self.out = _linear(width, narrow), _linear(width, width)
        self.gate, self.up = _linear(width, shape.hidden), _linear(width, shape.hidden)
        self.down = _linear(shape.hidden, width)

    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        y = self.before_attention(x)
        q, k, v = (
            part(y).view(batch, length, heads, -1).transpose(1, 2)
            for part, heads in (
                (self.query, self.heads),
                (self.key, self.groups),
                (self.value, self.groups),
            )
        )
        mixed = F.scaled_dot_product_attention(
            _turned(q, turn),
            _turned(k, turn),
            v,
            is_causal=True,
            enable_gqa=self.groups != self.heads,
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        y = self.before_mlp(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """A decoder."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.words = nn.Embedding(WORDS, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm, self.guess = nn.RMSNorm(shape.width), _linear(shape.width, WORDS)
        angles = torch.randn(2, shape.length, shape.width // shape.heads)
        self.register_buffer("turn", angles)  # cosines and sines

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x, self.turn)
        return self.guess(self.norm(x))


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def _turned(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding, in the form that pairs the two halves."""
    cosine, sine = turn
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


def _model(shape: Shape, device: str) -> Llama:
    """In bfloat16 on any card: recipes for one card keep no copy in single precision."""
    standard = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return Llama(shape)
    finally:
        torch.set_default_dtype(standard)


def _training(model: Llama, batch: int, device: str) -> Training:
    tokens = torch.randint(WORDS, (batch, model.shape.length + 1), device=device)
    text, following = tokens[:, :-1], tokens[:, 1:].flatten()
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Training(
        model,
        model.blocks,
        torch.optim.AdamW(learnt, lr=2e-5, fused=True),
        lambda: F.cross_entropy(model(text).flatten(0, 1), following),
    )


def _with_adapters(model: Llama) -> Llama:
    """On queries and values; the rest is only read."""
    model.requires_grad_(False)
    for block in model.blocks:
        for name in ("query", "value"):
            setattr(block, name, LowRank(getattr(block, name)))
    return model


def llama_7b(batch: int, device: str) -> Training:
    """Every weight is learnt: 8 bytes per parameter with gradient and optimizer."""
    return _training(_model(SHAPE_7B, device), batch, device)


def llama_7b_lora(batch: int, device: str) -> Training:
    """Adapters are learnt."""
    return _training(_with_adapters(_model(SHAPE_7B, device)), batch, device)


def llama_70b(batch: int, device: str) -> Training:
    """Every weight is learnt: 138 GB, and as much again in gradients and twice in state."""
    return _training(_model(SHAPE_70B, device), batch, device)


def llama_70b_lora(batch: int, device: str) -> Training:
    """Adapters are learnt: the weights alone are 138 GB."""
    return _training(_with_adapters(_model(SHAPE_70B, device)), batch, device)
