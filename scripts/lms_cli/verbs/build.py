"""`lms build`: make LMS wheels of a release, or the small wheel of all of them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lms_cli import paths


def configure_parser(subparsers: Any) -> None:
    """Describe the verb's command line."""
    from lms_cli.releases import MACHINE

    parser = subparsers.add_parser(
        "build",
        help="make the LMS wheel of a release, or the small wheel torch_lms",
        description="Make the LMS wheel of a release from the official one, and verify it; or the "
        "small wheel, which adds LMS to official wheels. Prints the path last.",
    )
    parser.add_argument(
        "releases",
        nargs="*",
        metavar="RELEASE",
        help="release of PyTorch, for example 2.11.0 (default with --addon: all)",
    )
    parser.add_argument(
        "--python",
        action="append",
        metavar="3.12",
        help="Python to build for, repeatable; 3.13t is free-threaded (default: the running one)",
    )
    parser.add_argument(
        "--addon",
        action="store_true",
        help="make torch_lms, one small wheel for these releases and every Python",
    )
    parser.add_argument(
        "--source",
        action="store_true",
        help="write the recipe of a build from source: patches, a script and a container file",
    )
    parser.add_argument(
        "--machine",
        default=MACHINE,
        metavar="aarch64",
        help="what to build for, by the name of its processor (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where it goes (default: .lms/wheels; with --source, .lms/source/vX.Y.Z)",
    )
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Build the wheels; their paths go to standard output."""
    from lms_cli import releases
    from lms_cli.addon import building
    from lms_cli.errors import UsageError
    from lms_cli.series import source_build
    from lms_cli.wheel import builds

    folder = args.out or builds.wheels_folder()
    chosen = [releases.find(name, paths.PATCHES) for name in args.releases]
    if args.addon:
        if args.python:
            raise UsageError("the small wheel serves every Python", "Leave --python out.")
        chosen = building.choose(chosen, paths.PATCHES, args.machine)
        print(building.build(chosen, folder, args.machine))
        return 0
    if not chosen:
        raise UsageError("no release to build", "Name one, or ask for the small wheel: --addon")
    if args.source:
        for release in chosen:
            target = args.out or paths.home() / "source" / release.tag
            source_build.write(release, target)
            print(target)
        return 0
    pythons = args.python or [releases.running_python()]
    for release in chosen:
        for python in pythons:
            release.wheel_for(python, args.machine)
    for path in [
        builds.build(release, python, folder, args.machine)
        for release in chosen
        for python in pythons
    ]:
        print(path)
    return 0
