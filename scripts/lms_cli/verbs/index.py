"""`lms index`: the package index of published wheels."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lms_cli import paths


def configure_parser(subparsers: Any) -> None:
    """Describe the verb's command line."""
    parser = subparsers.add_parser(
        "index",
        help="make the package index of published wheels",
        description="Make a folder of wheels a package index that pip and uv install from, out of "
        "static files. Its manifest.yaml says which wheels there are. Prints the index's folder "
        "last.",
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=paths.INDEX,
        metavar="DIR",
        help="folder of the manifest and the wheels (default: wheels/ of the repository)",
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--add",
        nargs="+",
        type=Path,
        default=[],
        metavar="WHEEL",
        help="list these wheels first, and copy them into DIR",
    )
    action.add_argument(
        "--check", action="store_true", help="change nothing; fail if something is not as listed"
    )
    parser.add_argument(
        "--base-url",
        metavar="URL",
        help="with --add: the wheels are published at URL/FILENAME and not copied; writes beside "
        "each a .metadata file to publish with it",
    )
    parser.add_argument(
        "--online",
        action="store_true",
        help="with --check: look also whether the wheels with an URL are there",
    )
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Make or check the index; its folder goes to standard output."""
    from lms_cli import files
    from lms_cli.errors import UsageError
    from lms_cli.index import static

    if args.base_url is not None and not args.add:
        raise UsageError("--base-url says where added wheels are", "Name them with --add.")
    if args.base_url is not None and not args.base_url.startswith(("https://", "http://")):
        raise UsageError(
            f"{args.base_url} is not an URL that a wheel can be at",
            "Give the address of a folder on a web server: https://example.org/wheels.",
        )
    if args.online and not args.check:
        raise UsageError("--online is a way to check", "Use it with --check.")
    with files.locked(paths.home() / "index"):
        if args.check:
            static.check(args.folder)
            if args.online:
                static.check_online(args.folder)
        else:
            if args.add:
                static.add(args.folder, args.add, args.base_url)
            static.make(args.folder)
    print(args.folder / static.PAGES)
    return 0
