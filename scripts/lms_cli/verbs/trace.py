"""`lms trace`: record what LMS sees of a program, and judge its policies on it without PyTorch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lms_cli.verbs import run

RECORDING = "PYTORCH_LMS_TRACE"  # the engine writes its trace there
COMPUTING_DEVICE = "Simulated CUDA device"  # what the simulated device calls itself without a card


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
        "--card", metavar="NAME", help="a card of the simulated device, see `lms bench --list`"
    )
    parser.add_argument(
        "--capacity",
        metavar="40G",
        help="bytes of device memory; G is 2^30 (default: the card's)",
    )
    for name, direction in (
        ("--h2d", "host to device"),
        ("--d2h", "device to host"),
        ("--both", "both at once, in sum"),
    ):
        parser.add_argument(
            name,
            metavar="15.75G",
            help=f"bandwidth, {direction}, bytes per second; G is 10^9 (default: the card's)",
        )
    parser.add_argument(
        "--policy",
        default="planned",
        metavar="NAME",
        help="as in PYTORCH_LMS_CONF (default: planned)",
    )
    parser.add_argument(
        "--recompute",
        choices=("on", "off"),
        default="on",
        help="whether bytes may be made again, as in PYTORCH_LMS_CONF (default: on)",
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

    from lms_cli import progress
    from lms_cli.trace import reader, replaying, table

    machine = machine_of(args)
    with progress.step(f"reading {args.trace}"):
        trace = reader.read(args.trace)
    refuse_host_times(trace.card)
    with progress.step(f"replaying {trace.operators:,} operators"):
        result = replaying.replay(trace, machine, args.policy, recompute=args.recompute == "on")
    if args.json:
        print(json.dumps(result.report(), indent=2))
    else:
        table.show(result)
    return 0


def refuse_host_times(card: str) -> None:
    """Refuse a trace of the simulated device that computes.

    Raises:
        TraceError: it is one.
    """
    from lms_cli.errors import TraceError

    if card == COMPUTING_DEVICE:
        raise TraceError(
            "the trace was recorded on the simulated device that computes, so its times are those "
            "of this machine's processor",
            "Record it with `lms trace record --card NAME`, or on a GPU.",
        )


def machine_of(args: argparse.Namespace) -> Any:
    """The machine that the command line describes.

    Raises:
        UsageError: something is missing or makes no sense.
    """
    from dataclasses import replace

    from lms_cli import simulate
    from lms_cli.errors import UsageError
    from lms_cli.trace import replaying

    given: dict[str, Any] = {}
    if args.capacity is not None:
        given["capacity"] = simulate.parse_size(args.capacity)
    for name, field in (("h2d", "in"), ("d2h", "out"), ("both", "both")):
        if (text := getattr(args, name)) is not None:
            given[f"{field}_bandwidth"] = simulate.parse_rate(text)
    if args.card is not None:
        return replace(replaying.machine_of(simulate.card(args.card)), **given)
    if not {"capacity", "in_bandwidth", "out_bandwidth"} <= given.keys():
        raise UsageError(
            "it is not said what to replay on", "Give --card, or --capacity, --h2d and --d2h."
        )
    return replaying.Machine(**given)


def record(args: argparse.Namespace) -> int:
    """Run the program, then check that what it left is a trace."""
    import subprocess

    from lms_cli import files, progress
    from lms_cli.errors import TraceError
    from lms_cli.trace import reader

    command, variables = run.command_of(args)
    with files.written_beside(args.out.absolute()) as temporary:
        temporary.unlink()
        status = subprocess.run(command, env={**variables, RECORDING: str(temporary)}).returncode
        if not temporary.exists():
            raise TraceError(
                f"the program ended with status {status} and left no trace",
                "Only operators that run with LMS on are recorded: --lms on, and a CUDA device.",
            )
        trace = reader.read(temporary)
    progress.note(f"{trace.operators:,} operators in {args.out}")
    return status if status >= 0 else 128 - status  # of a signal, as a shell reports it
