# %% [markdown]
# # A diffusion model on large images
#
# A U-Net learns to remove noise from images (DDPM), in plain PyTorch. Diffusion models are trained
# on small images, or in the compressed space of an autoencoder, because the activations of large
# ones do not fit: they grow with the number of pixels, and the parameters do not. The images here
# are made up.

# %%
import argparse

import torch
from torch import Tensor, nn

# %% [markdown]
# The sizes are those of a first try, which needs no card. Raise them here, or run the file with
# options: `python diffusion.py --image-size 1024 --channels 128`.

# %%
parser = argparse.ArgumentParser(description="Train a diffusion model on large images.")
parser.add_argument("--image-size", type=int, default=64, help="in pixels, divisible by 8")
parser.add_argument("--channels", type=int, default=32, help="of the first level")
parser.add_argument("--batch-size", type=int, default=4, help="images in a step")
parser.add_argument("--steps", type=int, default=5, help="how many")
parser.add_argument("--lms", action=argparse.BooleanOptionalAction, default=True)
args = parser.parse_args([] if "get_ipython" in globals() else None)

# %% [markdown]
# One line turns LMS on. Nothing else knows of it.

# %%
torch.cuda.set_enabled_lms(args.lms)

# %% [markdown]
# The U-Net: a block of two convolutions that hears of the time, four levels of them, and attention
# at the lowest resolution, where there are few pixels.

# %%
TIMES = 1000  # steps from an image to noise


class Block(nn.Module):
    """Two convolutions, the time added between them, and a way around."""

    def __init__(self, inputs: int, channels: int, width: int) -> None:
        super().__init__()
        self.before = nn.Sequential(
            nn.GroupNorm(8, inputs), nn.SiLU(), nn.Conv2d(inputs, channels, 3, padding=1)
        )
        self.time = nn.Linear(width, channels)
        self.after = nn.Sequential(
            nn.GroupNorm(8, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1)
        )
        self.around = nn.Conv2d(inputs, channels, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Of the same size."""
        y = self.before(x) + self.time(time)[:, :, None, None]
        return self.around(x) + self.after(y)


class Attention(nn.Module):
    """Every pixel looks at all others."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.queries = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Of the same size."""
        parts = self.queries(self.norm(x)).flatten(2).unflatten(1, (3, -1, 32)).transpose(3, 4)
        seen = nn.functional.scaled_dot_product_attention(*parts.unbind(1))
        return x + self.out(seen.transpose(2, 3).reshape(x.shape))


class UNet(nn.Module):
    """Says what is noise in images."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        width, levels = 4 * channels, [channels, 2 * channels, 4 * channels, 4 * channels]
        self.time = nn.Sequential(nn.Embedding(TIMES, width), nn.Linear(width, width), nn.SiLU())
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for inputs, outputs in zip([channels, *levels], levels):
            self.down.append(Block(inputs, outputs, width))
            self.up.insert(0, Block(2 * outputs, inputs, width))
        self.middle = Attention(levels[-1])
        self.last = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, images: Tensor, times: Tensor) -> Tensor:
        """Of the same size as the images."""
        time, x, kept = self.time(times), self.first(images), []
        for block in self.down:
            x = block(x, time)
            kept.append(x)
            x = nn.functional.avg_pool2d(x, 2)
        x = self.middle(x)
        for block in self.up:
            x = nn.functional.interpolate(x, scale_factor=2.0)
            x = block(torch.cat([x, kept.pop()], 1), time)
        return self.last(x)


# %%
torch.manual_seed(0)
model = UNet(args.channels).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
share = torch.cumprod(1 - torch.linspace(1e-4, 0.02, TIMES, device="cuda"), 0)  # of the image
for step in range(1, args.steps + 1):
    images = torch.rand(args.batch_size, 3, args.image_size, args.image_size, device="cuda")
    times = torch.randint(TIMES, (args.batch_size,), device="cuda")
    noise, left = torch.randn_like(images), share[times].view(-1, 1, 1, 1)
    noisy = left.sqrt() * images + (1 - left).sqrt() * noise
    loss = nn.functional.mse_loss(model(noisy, times), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}", flush=True)
print(f"paged in {torch.cuda.lms.stats()['lms.page_in.bytes'] >> 20} MiB")

# %% [markdown]
# ## On which card?
#
# `lms plan` tries it on cards that are not there, here with images of 1,024 by 1,024 pixels:

# %%
# !../../scripts/lms plan diffusion.py --image-size 1024 --channels 128 --batch-size 4 --steps 30

# %% [markdown]
# ## What to expect
#
# Nearly all of the need is activations. On an A100, which has half the memory, most of what has to
# go is computed again and not copied, and four fifths of the speed are left. On an RTX 4090, with
# less than a third, half the time is waiting for copies: there take a batch of 2, which needs half
# as much. An H100 just has enough.
#
# `torch.backends.cudnn.deterministic = True` lets LMS compute convolutions again, too; where that
# pays, the table has a line for it. Time it on a real card, where the switch itself may cost
# speed.
