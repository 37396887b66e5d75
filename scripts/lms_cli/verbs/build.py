"""`lms build`: make LMS wheels of a release."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lms_cli import paths


def configure_parser(subparsers: Any) -> None:
    """Describe the verb's command line."""
    parser = subparsers.add_parser(
        "build",
        help="make the LMS wheel of a release",
        description="Make the LMS wheel of a release from the official one, and verify it. "
        "Prints its path last.",
    )
    parser.add_argument("release", metavar="RELEASE", help="release of PyTorch, for example 2.11.0")
    parser.add_argument(
        "--python",
        action="append",
        metavar="3.12",
        help="Python to build for, repeatable; 3.13t is free-threaded (default: the running one)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where the wheel goes (default: .lms/wheels)"
    )
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Build the wheels; their paths go to standard output."""
    from lms_cli import builds, releases

    release = releases.find(args.release, paths.PATCHES)
    pythons = args.python or [releases.running_python()]
    for python in pythons:
        release.wheel_for(python)
    folder = args.out or builds.wheels_folder()
    for path in [builds.build(release, python, folder) for python in pythons]:
        print(path)
    return 0
