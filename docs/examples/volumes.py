"""Segment high-resolution volumes with a 3D U-Net, trained by lightning.

    python volumes.py --size 256 --lms

Each activation of the first level takes 1 GiB then. The volumes are random numbers; the net
learns where they are positive.
"""

from __future__ import annotations

import argparse

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--size", type=int, default=48, help="edge of a volume, divisible by 4")
    parser.add_argument("--channels", type=int, default=16, help="of the first level")
    parser.add_argument("--steps", type=int, default=5, help="how many, of one volume each")
    parser.add_argument("--lms", action="store_true", help="with Large Model Support")
    args = parser.parse_args()
    torch.cuda.set_enabled_lms(args.lms)
    lightning.seed_everything(0, verbose=False)
    volumes = torch.randn(args.steps, 1, args.size, args.size, args.size)
    data = TensorDataset(volumes, (volumes > 0).long().squeeze(1))
    trainer = lightning.Trainer(
        accelerator="cuda", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Segmenter(args.channels), DataLoader(data))
    print(f"paged in {torch.cuda.lms.stats()['lms.page_in.bytes'] >> 20} MiB")


class Segmenter(lightning.LightningModule):
    """A U-Net of three levels, and how it learns."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.net = Level(
            1, channels, Level(channels, 2 * channels, Level(2 * channels, 4 * channels))
        )
        self.classes = nn.Conv3d(channels, 2, 1)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """The loss of a batch."""
        volumes, labels = batch
        loss = nn.functional.cross_entropy(self.classes(self.net(volumes)), labels)
        print(f"step {index + 1} loss {loss.item():.4f}", flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Of all weights."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Level(nn.Module):
    """Convolutions, around the next level at half the resolution."""

    def __init__(self, inputs: int, channels: int, below: Level | None = None) -> None:
        super().__init__()
        self.down = convolution(inputs, channels)
        self.below = below
        if below:
            self.widen = nn.ConvTranspose3d(2 * channels, channels, 2, stride=2)
            self.up = convolution(2 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Of as many channels as the level has."""
        x = self.down(x)
        if self.below is None:
            return x
        inner = self.widen(self.below(nn.functional.max_pool3d(x, 2)))
        return self.up(torch.cat([x, inner], 1))


def convolution(inputs: int, channels: int) -> nn.Sequential:
    """A convolution that keeps the size."""
    return nn.Sequential(
        nn.Conv3d(inputs, channels, 3, padding=1), nn.GroupNorm(8, channels), nn.ReLU()
    )


if __name__ == "__main__":
    main()
