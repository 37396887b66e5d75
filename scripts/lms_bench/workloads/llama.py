"""Llama (Touvron et al., 2023): fine-tuning of all weights, or of low-rank adapters only."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from lms_bench.workloads.training import Training

WORDS, LENGTH = 32000, 2048
WIDTH, HEADS, HIDDEN, LAYERS = 4096, 32, 11008, 32
RANK = 16  # of the adapters


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

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.query, self.key = _linear(WIDTH, WIDTH), _linear(WIDTH, WIDTH)
        self.value, self.out = _linear(WIDTH, WIDTH), _linear(WIDTH, WIDTH)
        self.gate, self.up = _linear(WIDTH, HIDDEN), _linear(WIDTH, HIDDEN)
        self.down = _linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        y = self.before_attention(x)
        q, k, v = (
            part(y).view(batch, length, HEADS, -1).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(
            _turned(q, turn), _turned(k, turn), v, is_causal=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        y = self.before_mlp(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """A decoder of 7 billion parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.guess = nn.RMSNorm(WIDTH), _linear(WIDTH, WORDS)
        self.register_buffer("turn", torch.randn(2, LENGTH, WIDTH // HEADS))  # cosines and sines

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


def _model(device: str) -> Llama:
    """In bfloat16 on any card: recipes for one card keep no copy in single precision."""
    standard = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return Llama()
    finally:
        torch.set_default_dtype(standard)


def _training(model: Llama, batch: int, device: str) -> Training:
    tokens = torch.randint(WORDS, (batch, LENGTH + 1), device=device)
    text, following = tokens[:, :-1], tokens[:, 1:].flatten()
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Training(
        model,
        model.blocks,
        torch.optim.AdamW(learnt, lr=2e-5, fused=True),
        lambda: F.cross_entropy(model(text).flatten(0, 1), following),
    )


def llama_7b(batch: int, device: str) -> Training:
    """Every weight is learnt: 8 bytes per parameter with gradient and optimizer."""
    return _training(_model(device), batch, device)


def llama_7b_lora(batch: int, device: str) -> Training:
    """Adapters on queries and values are learnt; the rest is only read."""
    model = _model(device).requires_grad_(False)
    for block in model.blocks:
        for name in ("query", "value"):
            setattr(block, name, LowRank(getattr(block, name)))
    return _training(model, batch, device)
