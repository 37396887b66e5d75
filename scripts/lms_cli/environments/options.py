"""The options that choose where the LMS wheel is installed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lms_cli import paths


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe them."""
    parser.add_argument(
        "--environment",
        type=Path,
        metavar="DIR",
        help="a virtual environment of yours that has the LMS wheel",
    )
    parser.add_argument(
        "--release",
        metavar="RELEASE",
        help="release of PyTorch (default: the one that `lms build` takes)",
    )


def chosen(args: argparse.Namespace) -> Any:
    """The user's environment, or ours made up to date."""
    from lms_cli import releases
    from lms_cli.environments import lms_environment

    if args.environment is not None:
        return lms_environment.Environment(args.environment.absolute())
    patches = paths.PATCHES
    release = releases.find(args.release, patches) if args.release else releases.default(patches)
    return lms_environment.ensure(release)
