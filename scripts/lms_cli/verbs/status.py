"""`lms status`: the releases that are supported, and what there is of each."""

from __future__ import annotations

import argparse
from typing import Any

from lms_cli import paths


def configure_parser(subparsers: Any) -> None:
    """Describe the verb's command line."""
    parser = subparsers.add_parser(
        "status",
        help="list the supported releases",
        description="List the supported releases of PyTorch: what each series changes, and the "
        "wheels that were built and published.",
    )
    parser.add_argument(
        "--online",
        action="store_true",
        help="compare with the package index: releases that are not supported yet, wheels that "
        "are gone",
    )
    parser.add_argument("--json", action="store_true", help="everything as one JSON object")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Print the table, or JSON."""
    import json

    from lms_cli import releases, status

    supported = list(releases.load(paths.PATCHES).values())
    rows = [status.row(release) for release in supported]
    found = status.online(supported) if args.online else None
    if args.json:
        print(json.dumps(status.to_json(rows, found), indent=1))
    else:
        status.show(rows, found)
    return 0
