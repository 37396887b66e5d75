"""Choose a learning rate with Ray Tune: several trials on each GPU, each as large as it likes.

    python ray_tune.py --trials-per-gpu 2 --width 8192 --layers 24

Each trial is a process. Trials that fall behind are stopped early (ASHA). The table at the end has
a line for each.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

import ray
import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from torch import nn

RATES = [1e-4, 1e-3, 1e-2, 1e-1]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--gpus", type=int, help="how many (default: those that Ray finds)")
    parser.add_argument("--trials-per-gpu", type=int, default=2, help="at the same time")
    parser.add_argument("--layers", type=int, default=8, help="how many")
    parser.add_argument("--width", type=int, default=512, help="of a layer")
    parser.add_argument("--batch-size", type=int, default=1024, help="rows in a step")
    parser.add_argument("--steps", type=int, default=8, help="of a trial that is not stopped")
    parser.add_argument("--folder", help="for what Ray writes (default: its own)")
    parser.add_argument("--lms", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    # What turns LMS on in all trials, wherever they run.
    variables = {"PYTORCH_LMS": "1"} if args.lms else {}
    ray.init(num_gpus=args.gpus, include_dashboard=False, runtime_env={"env_vars": variables})
    show(search(args))
    ray.shutdown()


def search(args: argparse.Namespace) -> tune.ResultGrid:
    """Runs the trials."""
    sizes = {name: getattr(args, name) for name in ("layers", "width", "batch_size", "steps")}
    early = ASHAScheduler(max_t=args.steps, grace_period=max(args.steps // 2, 1))
    folder = args.folder and os.path.abspath(args.folder)
    results = tune.Tuner(
        tune.with_resources(trial, {"gpu": 1 / args.trials_per_gpu}),
        param_space={"rate": tune.grid_search(RATES), **sizes},
        tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=early),
        run_config=tune.RunConfig(storage_path=folder, verbose=0),
    ).fit()
    if results.errors:
        raise results.errors[0]
    return results


def show(results: tune.ResultGrid) -> None:
    """Prints a table."""
    print("     rate     steps       loss    paged in")
    for result in results:
        found = result.metrics
        print(
            f"{result.config['rate']:9} {found['training_iteration']:9} "
            f"{found['loss']:10.4f} {found['paged in MiB']:7} MiB"
        )
    print(f"best: {results.get_best_result().config['rate']}")


def trial(config: dict[str, Any]) -> None:
    """What a process does: it tells Ray the loss after each step."""
    before = torch.cuda.lms.stats()["lms.page_in.bytes"]  # the process may have had other trials
    for loss in losses(**config):
        moved = torch.cuda.lms.stats()["lms.page_in.bytes"] - before
        tune.report({"loss": loss, "paged in MiB": moved >> 20})


def losses(rate: float, layers: int, width: int, batch_size: int, steps: int) -> Iterator[float]:
    """Trains; yields the loss of each step."""
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
        for _ in range(layers)
    ]
    model = nn.Sequential(*blocks).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for _ in range(steps):
        x = torch.randn(batch_size, width, device="cuda")
        loss = nn.functional.mse_loss(model(x), x.abs())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


if __name__ == "__main__":
    main()
