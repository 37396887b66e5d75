"""`lms verify`: prove that wheels are the official ones plus our files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lms_cli import paths


def configure_parser(subparsers: Any) -> None:
    """Describe the verb's command line."""
    parser = subparsers.add_parser(
        "verify",
        help="prove that a wheel is the official one plus our files",
        description="Check LMS wheels against the official ones, one line for each check.",
    )
    parser.add_argument(
        "subjects",
        nargs="*",
        metavar="WHEEL|RELEASE",
        help="wheel files, or a release: its wheels in .lms/wheels (default: all wheels there)",
    )
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Verify each wheel; the status is 0 only if all checks of all wheels passed."""
    from lms_cli import verify
    from lms_cli.errors import VerifyError
    from lms_cli.verify import Outcome

    failed = 0
    for path in wheels(args.subjects):
        print(path, flush=True)
        for check in verify.verify(path, paths.PATCHES):
            print(f"  {check}", flush=True)
            failed += check.outcome is Outcome.FAILED
    if failed:
        raise VerifyError(f"{failed} check(s) failed")
    return 0


def wheels(subjects: list[str]) -> list[Path]:
    """The wheel files that the command line means."""
    from lms_cli import builds, releases
    from lms_cli.errors import UsageError

    found: list[Path] = []
    for subject in subjects or list(releases.load(paths.PATCHES)):
        if subject.endswith(".whl"):
            found.append(Path(subject))
            continue
        release = releases.find(subject, paths.PATCHES)
        here = sorted(builds.wheels_folder().glob(f"torch-{release.lms_version}-*.whl"))
        if not here:
            raise UsageError(
                f"there is no LMS wheel of PyTorch {release.version} in {builds.wheels_folder()}",
                f"Make it first: lms build {release.version}",
            )
        found += here
    return found
