"""`lms test`: run all the tests."""

from __future__ import annotations

import argparse
from typing import Any

from lms_cli import paths


def configure_parser(subparsers: Any) -> None:
    """Describe the verb's command line."""
    parser = subparsers.add_parser(
        "test",
        help="run all the tests",
        description="Make everything and run all the tests and lints. Arguments go to pytest.",
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="PYTEST ARGS")
    parser.set_defaults(execute=execute)


def protect(arguments: list[str]) -> list[str]:
    """The command line, with `--` before pytest's options, which argparse takes for its own."""
    if arguments[:1] == ["test"] and arguments[1:2] not in (["-h"], ["--help"]):
        return ["test", "--", *arguments[1:]]
    return arguments


def execute(args: argparse.Namespace) -> int:
    """Run pytest in the LMS environment; the exit status is pytest's."""
    import os
    import subprocess

    from lms_cli import compile, lms_environment, releases, simulate, toolbox

    release = releases.newest(paths.PATCHES)
    environment = lms_environment.ensure(release)
    linters = toolbox.make(paths.LOCKS / "lint.lock", "the linters")
    variables = {
        **os.environ,
        "PATH": f"{environment.folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "LMS_LINTERS": str(linters.parent),
        "LMS_SIM_BUILD": str(simulate.build(environment)),
    }
    if stock := compile.official_headers():
        variables["LMS_STOCK_INCLUDE"] = str(stock)
    arguments = args.arguments[args.arguments[:1] == ["--"] :]
    command = [str(environment.python), "-m", "pytest", *(arguments or ["--numprocesses=2"])]
    return subprocess.run(command, cwd=paths.ROOT, env=variables).returncode
