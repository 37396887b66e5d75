"""Small models of every kind that the simulation must train, for child processes."""

from __future__ import annotations

import torch
from lms_bench.rivals.checkpoint import recompute
from lms_bench.workloads.gpt import GPT
from torch import nn
from torch.nn import functional as F


class LastToken(GPT):
    """Guesses what follows a text; `replay` checkpoints its blocks."""

    def __init__(self, dropout: float = 0.0, replay: bool = False) -> None:
        super().__init__(64, 32, heads=4, layers=2, length=16, dropout=dropout)
        if replay:
            recompute(self.blocks)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return super().forward(tokens)[:, -1]


class Residual(nn.Module):
    """A convolutional network with batch norm and a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.body = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        )
        self.down = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU())
        self.head = nn.Linear(16, 64)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stem(images)
        return self.head(self.down(x + self.body(x)).mean((2, 3)))


class Recurrent(nn.Module):
    """An embedding and an LSTM or a GRU."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.words = nn.Embedding(64, 16)
        self.layers = kind(16, 24, num_layers=2, batch_first=True)
        self.head = nn.Linear(24, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.words(tokens))[0][:, -1])


class Bags(nn.Module):
    """Embedding bags, as recommenders have."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(64, 16, mode="sum")
        self.head = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 64))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.bag(tokens))


MODELS = {
    "gpt": LastToken,
    "cnn": Residual,
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU),
    "bags": Bags,
}

OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
}


def train(
    model: nn.Module,
    optimiser: str,
    device: str,
    *,
    steps: int = 4,
    autocast: torch.dtype | None = None,
) -> list[float]:
    """Trains on fixed data; losses, then sums of the weights."""
    model = model.to(device)
    step_of = OPTIMISERS[optimiser](model.parameters())
    scaler = torch.amp.GradScaler(device, enabled=autocast is torch.float16)
    numbers = torch.Generator().manual_seed(3)
    losses = []
    for _ in range(steps):
        if isinstance(model, Residual):
            batch = torch.randn(6, 3, 12, 12, generator=numbers).to(device)
        else:
            batch = torch.randint(64, (6, 16), generator=numbers).to(device)
        labels = torch.randint(64, (6,), generator=numbers).to(device)
        step_of.zero_grad()
        with torch.autocast(device, autocast, enabled=autocast is not None):
            loss = F.cross_entropy(model(batch), labels)
        scaler.scale(loss).backward()
        scaler.step(step_of)
        scaler.update()
        losses.append(loss.item())
    model.eval()
    with torch.inference_mode():
        losses.append(model(batch).double().sum().item())
    return losses + [p.double().sum().item() for p in model.parameters()]


def make(name: str, **settings: object) -> nn.Module:
    """A model with the same weights each time."""
    torch.manual_seed(0)
    return MODELS[name](**settings)
