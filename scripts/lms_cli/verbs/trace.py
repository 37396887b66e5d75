"""`lms trace`: record what LMS sees of a program, and judge its policies on it without PyTorch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lms_cli.verbs import run

RECORDING = "PYTORCH_LMS_TRACE"  # the engine writes its trace there


def configure_parser(subparsers: Any) -> None:
    """Describe the verb's command line."""
    parser = subparsers.add_parser(
        "trace",
        help="record what LMS sees of a program, or replay it on another device",
        description="Traces: which operators a program runs, and the storages that each touches.",
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    configure_replay(verbs)
    configure_record(verbs)


def configure_replay(subparsers: Any) -> None:
    """Describe the command line of `lms trace replay`."""
    parser = subparsers.add_parser(
        "replay",
        help="run a policy on a trace, in virtual time",
        description="Run the engine's policy on a trace, in virtual time and without PyTorch. "
        "What is printed is the mean of the steps after the third, else the whole trace.",
    )
    parser.add_argument("trace", type=Path, metavar="FILE", help="see docs/traces.md")
    parser.add_argument(
        "--capacity", required=True, metavar="40G", help="bytes of device memory; G is 2^30"
    )
    for name, direction in (("--h2d", "host to device"), ("--d2h", "device to host")):
        parser.add_argument(
            name,
            required=True,
            metavar="15.75G",
            help=f"bandwidth from {direction}, bytes per second; G is 10^9",
        )
    parser.add_argument(
        "--policy", default="planned", metavar="NAME", help="planned (the default) or original"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.set_defaults(execute=replay)


def configure_record(subparsers: Any) -> None:
    """Describe the command line of `lms trace record`."""
    parser = subparsers.add_parser(
        "record",
        help="run a program as `lms run` does, and write its trace",
        description="Run a PyTorch program as `lms run` does, and write its trace. "
        "The exit status is the program's, unless that is 0 and the trace is broken.",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="the trace; replaced if it exists")
    run.add_arguments(parser)
    parser.set_defaults(execute=record)


def replay(args: argparse.Namespace) -> int:
    """Check the trace, replay it, and print what came of it."""
    import json

    from lms_cli import progress, simulate, trace_format, trace_replay, trace_table

    machine = trace_replay.Machine(
        capacity=simulate.parse_size(args.capacity),
        in_bandwidth=simulate.parse_rate(args.h2d),
        out_bandwidth=simulate.parse_rate(args.d2h),
    )
    with progress.step(f"reading {args.trace}"):
        trace = trace_format.read(args.trace)
    with progress.step(f"replaying {trace.operators:,} operators"):
        result = trace_replay.replay(trace, machine, args.policy)
    if args.json:
        print(json.dumps(result.report(), indent=2))
    else:
        trace_table.show(result)
    return 0


def record(args: argparse.Namespace) -> int:
    """Run the program, then check that what it left is a trace."""
    import subprocess

    from lms_cli import files, progress, trace_format
    from lms_cli.errors import TraceError

    command, variables = run.command_of(args)
    with files.written_beside(args.out.absolute()) as temporary:
        temporary.unlink()
        status = subprocess.run(command, env={**variables, RECORDING: str(temporary)}).returncode
        if not temporary.exists():
            raise TraceError(
                f"the program ended with status {status} and left no trace",
                "Only operators that run with LMS on are recorded: --lms on, and a CUDA device.",
            )
        trace = trace_format.read(temporary)
    progress.note(f"{trace.operators:,} operators in {args.out}")
    return status if status >= 0 else 128 - status  # of a signal, as a shell reports it
