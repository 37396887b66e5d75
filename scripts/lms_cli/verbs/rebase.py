"""`lms rebase`: make the series of a new release."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lms_cli import paths


def configure_parser(subparsers: Any) -> None:
    """Describe the verb's command line."""
    parser = subparsers.add_parser(
        "rebase",
        help="make the series of a release that nobody has ported",
        description="Port the series of one release of PyTorch to another: its hunks, the list of "
        "official wheels and the locked packages; compile the engine for it. What needs a person "
        "is said for each hunk, and --continue goes on from there.",
    )
    parser.add_argument("release", metavar="NEW", help="the new release, for example 2.12.1")
    parser.add_argument(
        "--from",
        dest="old",
        metavar="OLD",
        help="the release whose series is ported (default: the newest before NEW)",
    )
    parser.add_argument(
        "--wheel",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="an official wheel on disk, repeatable: release candidates, nightlies "
        "(default: the wheels on the index)",
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--continue", dest="go_on", action="store_true", help="go on")
    group.add_argument("--abort", action="store_true", help="give the rebase up")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Start a rebase, go on with one, or give one up."""
    import json

    from lms_cli import progress, releases
    from lms_cli.errors import LmsError
    from lms_cli.series import rebase

    version = args.release.removeprefix("v")
    if args.abort:
        if kept := rebase.abort(version, paths.PATCHES):
            progress.note(f"what was changed by hand is kept in {kept}")
        return 0
    if not args.go_on:
        if args.old:
            old = releases.find(args.old, paths.PATCHES)
        else:
            old = rebase.nearest(version, paths.PATCHES)
        rebase.start(version, old, args.wheel, paths.PATCHES)
    state = rebase.work_of(version, paths.PATCHES).read()
    problem = ""
    try:
        rebase.finish(version, paths.PATCHES)
    except LmsError as error:
        problem = str(error)
        raise
    finally:
        if args.json:
            hunks = [hunk.to_row() for hunk in state.hunks]
            report = {"release": version, "from": state.old, "hunks": hunks, "problem": problem}
            print(json.dumps(report, indent=1))
        elif problem or not args.go_on:  # what conflicted has been resolved otherwise
            print(*state.hunks, sep="\n")
    progress.note(f"made patches/v{version} and its row in patches/{releases.FILE_NAME}")
    return 0
