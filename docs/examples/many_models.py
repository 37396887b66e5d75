# %% [markdown]
# # Any image classifier, any image size
#
# The models of `torchvision`, trained on images of any size: the activations grow with the number
# of pixels. For each step it prints images per second, what came to the device and what left it,
# and how much of the copying was hidden behind compute. The images are random numbers, which take
# as long.

# %%
import argparse
import time
from collections.abc import Iterator

import torch
import torchvision
from torch import Tensor, nn

# %% [markdown]
# The sizes are those of a first try, which needs no card. Raise them here, or run the file with
# options: `python many_models.py --model resnet152 --image-size 1500`.

# %%
parser = argparse.ArgumentParser(description="Train an image classifier at any image size.")
parser.add_argument("--model", default="resnet18", help="a name that torchvision knows")
parser.add_argument("--image-size", type=int, default=64, help="height and width in pixels")
parser.add_argument("--batch-size", type=int, default=4, help="images in a step")
parser.add_argument("--steps", type=int, default=5, help="how many")
parser.add_argument("--lms", action=argparse.BooleanOptionalAction, default=True)
args = parser.parse_args([] if "get_ipython" in globals() else None)
known = torchvision.models.list_models(torchvision.models)
if args.model not in known:
    parser.error(f"torchvision has no {args.model}. It has {', '.join(known)}.")

# %% [markdown]
# One line turns LMS on. Nothing else knows of it.

# %%
torch.cuda.set_enabled_lms(args.lms)

# %%
CLASSES = 1000


def train(name: str, image_size: int, batch_size: int, steps: int) -> Iterator[Tensor]:
    """Yields the loss of each step."""
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, weights=None, num_classes=CLASSES).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(steps):
        images = torch.randn(batch_size, 3, image_size, image_size, device="cuda")
        labels = torch.randint(CLASSES, (batch_size,), device="cuda")
        output = model(images)
        # Some have further outputs, for training only.
        loss = nn.functional.cross_entropy(getattr(output, "logits", output), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss


# %% [markdown]
# `torch.cuda.lms.stats` counts from the start of the process, so what a step moved is a difference.

# %%
MIB = 1 << 20
HEADINGS = ("step", "loss", "images/s", "in MiB", "out MiB", "hidden", "peak MiB")


def measured(losses: Iterator[Tensor], batch_size: int) -> Iterator[str]:
    """The rest of each line."""
    before, begin = torch.cuda.lms.stats(), time.perf_counter()
    for loss in losses:
        torch.cuda.synchronize()
        after, end = torch.cuda.lms.stats(), time.perf_counter()
        moved = [
            (after[name] - before[name]) / MIB
            for name in ("lms.page_in.bytes", "lms.page_out.bytes")
        ]
        hidden = after["lms.hidden_percent"]
        peak = torch.cuda.max_memory_reserved() / MIB
        yield (
            f"{loss.item():9.4f} {batch_size / (end - begin):9.2f} {moved[0]:9.1f} {moved[1]:9.1f} "
            f"{hidden:8} % {peak:9.1f}"
        )
        before, begin = after, time.perf_counter()


print(*(heading.rjust(9) for heading in HEADINGS))
losses = train(args.model, args.image_size, args.batch_size, args.steps)
for step, line in enumerate(measured(losses, args.batch_size), 1):
    print(f"{step:9}", line, flush=True)

# %% [markdown]
# ## On which card?
#
# `lms plan` tries it on cards that are not there, here a ResNet-152 on images of 1,024 by 1,024
# pixels:

# %%
# !../../scripts/lms plan --with torchvision \
#     many_models.py --model resnet152 --image-size 1024 --batch-size 32 --steps 30

# %% [markdown]
# ## What to expect
#
# On an H100, which has two thirds of the memory, training keeps almost nine tenths of its speed,
# and no step waits for a copy. An A100 with a third of the memory keeps four tenths, and twice
# that with `torch.backends.cudnn.deterministic = True`: results of convolutions are most of what
# has to go, and with the switch they are computed again and not copied. The same holds for an RTX
# 4090.
#
# A real H200 held to two thirds of what a ResNet-152 needs ran at 94 % of its speed, and at 84 %
# with half of it ([figures](../benchmarks/gpu.md#speed)).
