"""3D U-Net for segmentation (Çiçek et al., 2016), with nnU-Net's norms and optimizer."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from lms_bench.workloads.training import Training, half

CHANNELS, CLASSES, SIDE = 4, 4, 128  # as in the BraTS challenge: four images of a brain
WIDTHS = (32, 64, 128, 256, 320, 320)


def _two_convolutions(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(inputs, outputs, 3, stride, 1),
        nn.InstanceNorm3d(outputs, affine=True),
        nn.LeakyReLU(inplace=True),
        nn.Conv3d(outputs, outputs, 3, 1, 1),
        nn.InstanceNorm3d(outputs, affine=True),
        nn.LeakyReLU(inplace=True),
    )


class UNet(nn.Module):
    """Down to a 32nd of the side and up again, with skips between equal sizes."""

    def __init__(self) -> None:
        super().__init__()
        ins = (CHANNELS, *WIDTHS[:-1])
        self.down = nn.ModuleList(
            _two_convolutions(inputs, outputs, 1 if level == 0 else 2)
            for level, (inputs, outputs) in enumerate(zip(ins, WIDTHS))
        )
        above = list(zip(WIDTHS[:0:-1], WIDTHS[-2::-1]))  # (deeper width, width of the skip)
        self.grow = nn.ModuleList(nn.ConvTranspose3d(deep, skip, 2, 2) for deep, skip in above)
        self.up = nn.ModuleList(_two_convolutions(2 * skip, skip, 1) for _, skip in above)
        self.head = nn.Conv3d(WIDTHS[0], CLASSES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for stage in self.down:
            x = stage(x)
            skips.append(x)
        skips.pop()
        for grow, stage in zip(self.grow, self.up):
            x = stage(torch.cat((grow(x), skips.pop()), 1))
        return self.head(x)


def unet3d(batch: int, device: str) -> Training:
    """31 million parameters; activations of whole volumes."""
    with torch.device(device):
        model = UNet()
        volumes = torch.randn(batch, CHANNELS, SIDE, SIDE, SIDE)
        labels = torch.randint(CLASSES, (batch, SIDE, SIDE, SIDE))
    return Training(
        model,
        [*model.down, *model.up],
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99, nesterov=True),
        lambda: F.cross_entropy(model(volumes), labels),
        autocast=half(),
    )
