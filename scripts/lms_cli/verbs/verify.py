"""`lms verify`: prove that series and LMS wheels are what they say, against official wheels."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lms_cli import paths


def configure_parser(subparsers: Any) -> None:
    """Describe the verb's command line."""
    parser = subparsers.add_parser(
        "verify",
        help="prove that a series fits its release, and a wheel is the official one plus our files",
        description="Check series and LMS wheels against the official wheels, one line for each "
        "check. Of an official wheel, only what a check needs is downloaded.",
    )
    parser.add_argument(
        "subjects",
        nargs="*",
        metavar="WHEEL|RELEASE",
        help="wheel files, or releases: the series, and wheels in .lms/wheels (default: all "
        "releases)",
    )
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Verify each subject; the status is 0 only if all checks of all of them passed."""
    from lms_cli import checks, progress, releases
    from lms_cli.addon import small_wheel, verify_addon
    from lms_cli.errors import VerifyError
    from lms_cli.series import verify_series
    from lms_cli.wheel import builds, verify_wheel

    subjects = args.subjects or list(releases.load(paths.PATCHES))
    failed = 0
    for subject in progress.each(f"verifying {len(subjects)} subject(s)", subjects, brief=True):
        wheels = [Path(subject)]
        if not subject.endswith(".whl"):
            release = releases.find(subject, paths.PATCHES)
            failed += checks.show(f"PyTorch {release.version}", verify_series.verify(release))
            wheels = builds.built(release)
        for path in wheels:
            is_small = path.name.startswith(f"{small_wheel.PACKAGE}-")
            outcomes = (verify_addon if is_small else verify_wheel).verify(path, paths.PATCHES)
            failed += checks.show(str(path), outcomes)
    if failed:
        raise VerifyError(f"{failed} check(s) failed")
    return 0
