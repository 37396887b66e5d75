"""`lms export`: the series of a release as patches for `git am`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lms_cli import paths


def configure_parser(subparsers: Any) -> None:
    """Describe the verb's command line."""
    parser = subparsers.add_parser(
        "export",
        help="make the patches of a release for `git am`",
        description="Make patches for `git am` of everything that LMS adds to a release. If the "
        "series was changed, its index lines and its record are brought up to date first, with "
        "the texts of the official wheel. Prints the folder of the patches last.",
    )
    parser.add_argument("release", metavar="RELEASE", help="release of PyTorch, for example 2.11.0")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where they go (default: .lms/export/v2.11.0)"
    )
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Export the series; the folder goes to standard output."""
    from lms_cli import download, progress, releases
    from lms_cli.series import export
    from lms_cli.wheel import graft
    from lms_cli.wheel.wheelfile import Wheel

    release = releases.find(args.release, paths.PATCHES)
    if not export.is_current(release):
        with Wheel(download.any_texts(release)) as official:
            graft.check_official(release, official)
            for path in export.update(release, official.text):
                progress.note(f"wrote {path}")
    folder = args.out or paths.home() / "export" / release.tag
    export.write(release, folder)
    print(folder)
    return 0
