"""`lms lint`: check the series themselves, without a network."""

from __future__ import annotations

import argparse
from typing import Any

from lms_cli import paths


def configure_parser(subparsers: Any) -> None:
    """Describe the verb's command line."""
    parser = subparsers.add_parser(
        "lint",
        help="check the patches of a release",
        description="Check the series of releases, without a network: what each patch says, how "
        "much it changes, and that its export is up to date.",
    )
    parser.add_argument(
        "releases", nargs="*", metavar="RELEASE", help="releases of PyTorch (default: all)"
    )
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Lint each series; the status is 0 only if all checks of all releases passed."""
    from lms_cli import checks, progress, releases
    from lms_cli.errors import SeriesError
    from lms_cli.series import lint

    versions = args.releases or list(releases.load(paths.PATCHES))
    failed = 0
    for version in progress.each(f"checking {len(versions)} series", versions, brief=True):
        release = releases.find(version, paths.PATCHES)
        failed += checks.show(f"PyTorch {release.version}", lint.lint(release))
    if failed:
        raise SeriesError(f"{failed} check(s) of the series failed")
    return 0
