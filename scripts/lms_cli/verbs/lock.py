"""`lms lock`: lock the packages of releases anew."""

from __future__ import annotations

import argparse
from typing import Any

from lms_cli import paths


def configure_parser(subparsers: Any) -> None:
    """Describe the verb's command line."""
    parser = subparsers.add_parser(
        "lock",
        help="lock the packages that a release needs",
        description="Write the lock files of releases anew, after scripts/locks/*.in has changed. "
        "Versions stay where they fit; delete a lock file first for the newest of all.",
    )
    parser.add_argument("releases", nargs="*", metavar="RELEASE", help="default: all releases")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Lock each release; the paths of the lock files go to standard output."""
    from lms_cli import progress, releases
    from lms_cli.environments import locking

    names = args.releases or list(releases.load(paths.PATCHES))
    found = [releases.find(name, paths.PATCHES) for name in names]
    for release in progress.each(f"locking {len(found)} release(s)", found):
        locking.lock(release)
        print(release.lock)
    return 0
