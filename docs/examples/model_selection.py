"""Train a small model with several learning rates at once, and end those that fall behind.

    python model_selection.py --rates 0.3 0.1 0.01 0.001 --width 8192 --layers 24

It prints the loss of each at its end, and which is the best. On a card all of them train with
much less memory than they take together; with several cards they train on all of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from torch import nn

jobs = torch.cuda.lms.jobs


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.01, 0.0001])
    parser.add_argument("--layers", type=int, default=8, help="how many")
    parser.add_argument("--width", type=int, default=512, help="of a layer")
    parser.add_argument("--steps", type=int, default=30, help="how many, at most")
    parser.add_argument("--turn-seconds", type=float, default=1.0, help="of one of them")
    args = parser.parse_args()
    losses: dict[jobs.Job, float] = {}

    def stop_early(job: jobs.Job) -> None:
        """Ends the worse half of the jobs after a third of their steps."""
        if job.steps_done == args.steps // 3:
            losses[job] = job.latest
            if len(losses) == len(found):
                for worse in sorted(found, key=losses.__getitem__)[(len(found) + 1) // 2 :]:
                    worse.cancel()

    # One after the other, so that all come that far at about the same time.
    pool = jobs.Pool(schedule=jobs.RoundRobin(), turn_seconds=args.turn_seconds, on_step=stop_early)
    found = [
        pool.add(
            train, rate, args.layers, args.width, args.steps, name=f"rate {rate}", steps=args.steps
        )
        for rate in args.rates
    ]
    pool.run()
    for job in found:
        print(f"{job.name}: {job.state} after {job.steps_done} steps, loss {job.latest:.5f}")
    done = [job for job in found if job.state == "done"]
    print(f"best: {min(done, key=lambda job: job.result()).name}")


def train(rate: float, layers: int, width: int, steps: int) -> Iterator[float]:
    """Yields the loss of each step. Returns that of data which it was not trained with."""
    torch.manual_seed(0)
    blocks = [layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.GELU())]
    model = nn.Sequential(*blocks).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    for _ in range(steps):
        loss = loss_of(model, width)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()
    with torch.inference_mode():
        return loss_of(model, width).item()


def loss_of(model: nn.Module, width: int) -> torch.Tensor:
    """For random data, which have something to learn."""
    x = torch.randn(256, width, device="cuda")
    return nn.functional.mse_loss(model(x), torch.tanh(x.flip(1)))


if __name__ == "__main__":
    main()
