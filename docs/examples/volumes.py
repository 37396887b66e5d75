# %% [markdown]
# # High-resolution volumes
#
# A 3D U-Net learns to segment volumes, trained by `lightning`. Scans are often cut into pieces
# because the activations of a whole one do not fit; large volumes were what the first LMS was made
# for. With an edge of 256 voxels each activation of the first level takes 1 GiB, and a step keeps
# about ten. The volume here is random numbers; the net learns where they are positive.

# %%
import argparse

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

# %% [markdown]
# The sizes are those of a first try, which needs no card. Raise them here, or run the file with
# options: `python volumes.py --size 256`.

# %%
parser = argparse.ArgumentParser(description="Segment high-resolution volumes with a 3D U-Net.")
parser.add_argument("--size", type=int, default=48, help="edge of a volume, divisible by 4")
parser.add_argument("--channels", type=int, default=16, help="of the first level")
parser.add_argument("--steps", type=int, default=5, help="how many, of one volume each")
parser.add_argument("--lms", action=argparse.BooleanOptionalAction, default=True)
args = parser.parse_args([] if "get_ipython" in globals() else None)

# %% [markdown]
# One line turns LMS on. Nothing else knows of it.

# %%
torch.cuda.set_enabled_lms(args.lms)


# %%
def convolution(inputs: int, channels: int) -> nn.Sequential:
    """A convolution that keeps the size."""
    return nn.Sequential(
        nn.Conv3d(inputs, channels, 3, padding=1), nn.GroupNorm(8, channels), nn.ReLU()
    )


class Level(nn.Module):
    """Convolutions, around the next level at half the resolution."""

    def __init__(self, inputs: int, channels: int, below: nn.Module | None = None) -> None:
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


# %%
lightning.seed_everything(0, verbose=False)
volume = torch.randn(1, args.size, args.size, args.size)
data = [(volume, (volume > 0).long().squeeze(0))] * args.steps
trainer = lightning.Trainer(
    accelerator="cuda", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(Segmenter(args.channels), DataLoader(data))
print(f"paged in {torch.cuda.lms.stats()['lms.page_in.bytes'] >> 20} MiB")

# %% [markdown]
# ## On which card?
#
# `lms plan` tries it on cards that are not there, here with volumes of 320 voxels along an edge and
# 32 channels at the first level:

# %%
# !../../scripts/lms plan --with lightning volumes.py --size 320 --channels 32 --steps 30

# %% [markdown]
# ## What to expect
#
# Nearly all of the need is a few very large activations. An A100, which has three quarters of the
# memory, keeps more than nine tenths of its speed. An RTX 4090 has less than half and spends most
# of the time on copies: there set `torch.backends.cudnn.deterministic = True`, with which results
# of convolutions are computed again and not copied, and training is nearly three times as fast.
# An H100 has memory enough, and waits only for the volume and its labels, which are copied with
# or without LMS.
#
# The largest operator sets the limit: what it reads and writes must fit together. If a volume is
# too large for that, take fewer channels at the first level. A real H200 held to half of what a
# similar U-Net needs ran at 72 % of its speed ([more](../guide/volumes.md)).
