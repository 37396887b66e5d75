"""`lms demo`: make everything, then train models that do not fit the device."""

from __future__ import annotations

import argparse
from typing import Any

RATIO = 4  # peak need over device memory


def configure_parser(subparsers: Any) -> None:
    """Describe the verb's command line."""
    parser = subparsers.add_parser(
        "demo",
        help="make everything and train models that do not fit the device",
        description="Make the LMS wheel and its environment, then train a GPT and a ResNet whose "
        f"peak need is {RATIO} times the device's memory: without LMS, with it, and with no "
        "limit.",
    )
    parser.add_argument(
        "--model", action="append", choices=("gpt", "resnet"), help="repeatable (default: both)"
    )
    parser.add_argument(
        "--steps", type=int, default=5, metavar="N", help="training steps (default: 5)"
    )
    parser.add_argument(
        "--device",
        choices=("sim", "cuda"),
        help="default: cuda if this machine has a GPU, else sim",
    )
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Train each model three times; the status is 0 only if every claim was seen to hold."""
    from lms_cli import paths, progress, releases, simulate
    from lms_cli.demo import demonstration
    from lms_cli.environments import lms_environment

    environment = lms_environment.ensure(releases.default(paths.PATCHES))
    device = args.device or simulate.default_device()
    models = args.model or ["gpt", "resnet"]
    comparisons = [
        demonstration.compare(environment, model, args.steps, device, RATIO)
        for model in progress.each(f"training {len(models)} model(s)", models)
    ]
    demonstration.show(comparisons, device)
    for comparison in comparisons:
        print(f"picture: {demonstration.draw(environment, comparison)}")
    failures = [failure for comparison in comparisons for failure in comparison.failures(RATIO)]
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0
