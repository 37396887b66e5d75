"""Train any image classifier of torchvision, at any image size, and see what LMS moves.

    python many_models.py --model resnet152 --image-size 1500 --batch-size 4 --lms

prints a line for each step: images per second, what came to the device and what left it, and how
much of the copying was hidden behind compute. The images are random numbers, which take as long.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import torch
import torchvision
from torch import Tensor, nn

MIB = 1 << 20
CLASSES = 1000
HEADINGS = ("step", "loss", "images/s", "in MiB", "out MiB", "hidden", "peak MiB")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", default="resnet50", help="a name that torchvision knows")
    parser.add_argument("--image-size", type=int, default=224, help="height and width in pixels")
    parser.add_argument("--batch-size", type=int, default=8, help="images in a step")
    parser.add_argument("--steps", type=int, default=10, help="how many")
    parser.add_argument("--lms", action="store_true", help="with Large Model Support")
    args = parser.parse_args()
    known = torchvision.models.list_models(torchvision.models)
    if args.model not in known:
        parser.error(f"torchvision has no {args.model}. It has {', '.join(known)}.")
    torch.cuda.set_enabled_lms(args.lms)
    print(*(heading.rjust(9) for heading in HEADINGS))
    losses = train(args.model, args.image_size, args.batch_size, args.steps)
    for step, loss in enumerate(measured(losses, args.batch_size), 1):
        print(f"{step:9}", loss, flush=True)


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


def measured(losses: Iterator[Tensor], batch_size: int) -> Iterator[str]:
    """The rest of each line; torch.cuda.lms.stats counts from the start of the process."""
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


if __name__ == "__main__":
    main()
