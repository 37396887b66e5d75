"""Residual networks (He et al., 2015)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from lms_bench.workloads.training import Training, half

CLASSES, SIDE = 1000, 224


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)
    )


class Bottleneck(nn.Module):
    """Three convolutions and a skip; the stride is in the middle one, as in torchvision."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _convolution(inputs, width, 1),
            nn.ReLU(inplace=True),
            _convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            _convolution(width, 4 * width, 1),
        )
        same = inputs == 4 * width and stride == 1
        self.skip = nn.Identity() if same else _convolution(inputs, 4 * width, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.skip(x), inplace=True)


class ResNet(nn.Module):
    """Four stages of bottlenecks."""

    def __init__(self, depths: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            _convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        inputs, blocks = 64, []
        for stage, depth in enumerate(depths):
            for index in range(depth):
                width, stride = 64 << stage, 2 if stage > 0 and index == 0 else 1
                blocks.append(Bottleneck(inputs, width, stride))
                inputs = 4 * width
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(inputs, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def resnet152(batch: int, device: str) -> Training:
    """60 million parameters, and activations that are many times that."""
    with torch.device(device):
        model = ResNet((3, 8, 36, 3))
        images = torch.randn(batch, 3, SIDE, SIDE)
        labels = torch.randint(CLASSES, (batch,))
    return Training(
        model,
        model.blocks,
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4),
        lambda: F.cross_entropy(model(images), labels),
        autocast=half(),
    )
