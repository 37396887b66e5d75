"""`lms test`: run all the tests."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lms_cli import paths

if TYPE_CHECKING:
    from lms_cli.releases import Release


# Of a release that is not the default one: what a user's program meets.
WHOLE_PROGRAMS = (
    *(f"tests/engine/test_programs{suffix}.py" for suffix in ("", "_demo", "_scenarios")),
    "tests/upstream",
)
# Of each part of the project something, in under five minutes on two cores after the builds.
QUICK = (
    "tests/engine/test_paging.py",
    "tests/engine/test_streams.py",
    "tests/engine/test_programs_demo.py",
    "tests/simcuda/test_memory.py",
    "tests/tooling/test_bad_input.py",
    "tests/tooling/test_graft.py",
    "tests/tooling/test_run.py",
    "tests/tooling/test_series.py",
    "tests/tooling/test_trace.py",
    "tests/tooling/test_lints.py",
    "--deselect=tests/tooling/test_lints.py::test_clang_tidy",
)
HELP = ("-h", "--help")


def configure_parser(subparsers: Any) -> None:
    """Describe the verb's command line."""
    parser = subparsers.add_parser(
        "test",
        help="run all the tests",
        description="Make everything and run the tests. Without arguments: all tests and lints, on "
        "the default release.",
    )
    parser.add_argument(
        "--release",
        metavar="RELEASE",
        help="the release to test, 'all' for one after the other (default: the default release); "
        "without further arguments, whole programs",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a choice of tests of every part, on the default release: a first answer",
    )
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="PYTEST ARGS", help="go to pytest"
    )
    parser.set_defaults(execute=execute)


def protect(arguments: list[str]) -> list[str]:
    """The command line, with `--` before pytest's options, which argparse takes for its own."""
    if arguments[:1] != ["test"] or arguments[1:2] in ([word] for word in HELP):
        return arguments
    own = {"--release": 3, "--quick": 2}.get(next(iter(arguments[1:2]), ""), 1)
    return [*arguments[:own], "--", *arguments[own:]]


def execute(args: argparse.Namespace) -> int:
    """Run pytest in the LMS environments; the exit status is the first that is not 0."""
    from lms_cli import progress, releases

    arguments = args.arguments[args.arguments[:1] == ["--"] :]
    default = releases.default(paths.PATCHES)
    if args.quick:
        runs = [(default, [*QUICK, *arguments])]
    elif args.release == "all":
        listed = releases.for_python(releases.running_python(), paths.PATCHES)
        runs = [(release, arguments or [*WHOLE_PROGRAMS]) for release in listed]
    elif args.release:
        release = releases.find(args.release, paths.PATCHES)
        runs = [(release, arguments or [*WHOLE_PROGRAMS])]
    else:
        runs = [(default, arguments)]
    status = 0
    for release, words in runs:
        if len(runs) > 1:
            progress.note(f"testing PyTorch {release.version}")
        status = run(release, words) or status
    return status


def run(release: Release, arguments: list[str]) -> int:
    """Run pytest in the environment of a release, on both cores unless told what to run."""
    import os
    import subprocess

    from lms_cli import simulate
    from lms_cli.environments import lms_environment, toolbox
    from lms_cli.wheel import compile

    environment = lms_environment.ensure(release)
    linters = toolbox.make(paths.LOCKS / "lint.lock", "the linters")
    variables = {
        **os.environ,
        "PATH": f"{environment.folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "LMS_LINTERS": str(linters.parent),
        "LMS_SIM_BUILD": str(simulate.build(environment)),
        "LMS_STOCK_INCLUDE": str(compile.official_headers(release)),
    }
    is_choice = arguments and [*arguments[: len(QUICK)]] != [*QUICK]
    parallel = [] if is_choice and [*arguments] != [*WHOLE_PROGRAMS] else ["--numprocesses=2"]
    # What the tests of a file share is made once; the order is that of tests/conftest.py.
    by_file = ["--dist=loadfile", "--no-loadscope-reorder"]
    command = [str(environment.python), "-m", "pytest", *by_file, *arguments, *parallel]
    return subprocess.run(command, cwd=paths.ROOT, env=variables).returncode
