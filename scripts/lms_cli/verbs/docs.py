"""`lms docs`: the documents as a web site."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lms_cli import paths

ADDRESS = "127.0.0.1:8000"


def configure_parser(subparsers: Any) -> None:
    """Describe the verb's command line."""
    parser = subparsers.add_parser(
        "docs",
        help="make a web site of the documents",
        description="Make a web site of README.md and docs/, with a search and the functions' "
        "reference. Any web server can serve it, and a browser fetches nothing from elsewhere. A "
        "link that leads nowhere is an error. Prints the site's folder last.",
    )
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of the site, in place of an earlier one (default: .lms/site)",
    )
    place.add_argument(
        "--serve",
        nargs="?",
        const=ADDRESS,
        metavar="HOST:PORT",
        help="show the site there instead, and again whenever a document changes "
        f"(default: {ADDRESS})",
    )
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Make the site, whose folder goes to standard output, or serve it."""
    from lms_cli.site import building

    if args.serve:
        return building.serve(args.serve)
    folder = args.out or paths.home() / "site"
    building.build(folder)
    print(folder)
    return 0
