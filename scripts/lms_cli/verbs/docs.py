"""`lms docs`: the documents as a web site."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lms_cli import paths
from lms_cli.environments import options

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
    place.add_argument(
        "--notebooks",
        nargs="*",
        metavar="EXAMPLE",
        help="run and plan these examples, and write their notebooks instead (default: all)",
    )
    options.add_arguments(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Make the site, whose folder goes to standard output, or serve it, or make notebooks."""
    from lms_cli.errors import UsageError
    from lms_cli.site import building

    if args.notebooks is not None:
        return make_notebooks(args)
    if args.environment or args.release:
        raise UsageError(
            "--environment and --release say where examples run", "Use them with --notebooks."
        )
    if args.serve:
        return building.serve(args.serve)
    folder = args.out or paths.home() / "site"
    building.build(folder)
    print(folder)
    return 0


def make_notebooks(args: argparse.Namespace) -> int:
    """Make notebooks of examples; their paths go to standard output.

    Raises:
        UsageError: there is no such example.
        DocumentError: one fails.
    """
    from lms_cli import progress
    from lms_cli.environments import lms_environment
    from lms_cli.errors import UsageError
    from lms_cli.site import notebooks

    for name in args.notebooks:
        if name not in notebooks.LIMITS:
            raise UsageError(f"no example {name}", f"There are {', '.join(notebooks.LIMITS)}.")
    environment = options.chosen(args)
    overlay = lms_environment.with_lock(environment, paths.LOCKS / "libraries.lock")
    names = args.notebooks or list(notebooks.LIMITS)
    for name in progress.each("running and planning examples", names):
        print(notebooks.make(name, environment, overlay), flush=True)
    return 0
