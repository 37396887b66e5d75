"""The command line: one parser, one verb, and the only place where errors become exit codes."""

from __future__ import annotations

import argparse
import sys

from lms_cli import files
from lms_cli.environments import toolbox
from lms_cli.errors import FileError, LmsError, SpaceError
from lms_cli.verbs import (
    bench,
    build,
    demo,
    docs,
    export,
    index,
    lint,
    lock,
    plan,
    rebase,
    run,
    status,
    test,
    trace,
    verify,
)

VERBS = (
    demo,
    build,
    verify,
    index,
    rebase,
    export,
    lint,
    status,
    lock,
    run,
    plan,
    bench,
    trace,
    docs,
    test,
)
INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it


def main(argv: list[str] | None = None) -> int:
    """Run one verb and return the process's exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="lms",
        description="PyTorch with Large Model Support: build its wheels, check them, use them.",
        epilog="Everything made goes to the ignored folder .lms/; delete it to start afresh.",
    )
    subparsers = parser.add_subparsers(metavar="VERB", required=True)
    for verb in VERBS:
        verb.configure_parser(subparsers)
    args = parser.parse_args(run.protect(test.protect(arguments)))
    try:
        toolbox.ensure(arguments)
        return int(args.execute(args))
    except LmsError as error:
        return fail(error)
    except OSError as error:
        if files.is_out_of_space(error):
            return fail(
                SpaceError(f"the disk is full: {error}", "Free some space and run it again.")
            )
        if error.filename is None:
            raise
        return fail(
            FileError(
                f"{error.strerror}: {error.filename}",
                "Choose another place: --out for results, LMS_HOME for what is made on the way, "
                "XDG_CACHE_HOME for downloads.",
            )
        )
    except KeyboardInterrupt:
        print("lms: interrupted", file=sys.stderr)
        return INTERRUPTED


def fail(error: LmsError) -> int:
    """Print an error and return its exit status."""
    print(f"lms: error: {error}", file=sys.stderr)
    return error.exit_code
