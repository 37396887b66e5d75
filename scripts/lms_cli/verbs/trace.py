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
        help="record what LMS sees of a program; replay it on another device, or look at a step",
        description="Traces: which operators a program runs, and the storages that each touches.",
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    configure_replay(verbs)
    configure_view(verbs)
    configure_record(verbs)


def configure_replay(subparsers: Any) -> None:
    """Describe the command line of `lms trace replay`."""
    parser = subparsers.add_parser(
        "replay",
        help="run a policy on a trace, in virtual time",
        description="Run the engine's policy on a trace, in virtual time and without PyTorch. "
        "What is printed is the mean of the steps after the third, else the whole trace.",
    )
    add_replay(parser)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.set_defaults(execute=replay)


def configure_view(subparsers: Any) -> None:
    """Describe the command line of `lms trace view`."""
    parser = subparsers.add_parser(
        "view",
        help="replay a trace, and write a page that shows what happened in a step",
        description="Replay a trace as `lms trace replay` does, and write a page that shows what "
        "happened in one step: operators, copies, what was made again, what waited for what, and "
        "the memory over time. The page is one file, which needs no network. Prints its path last.",
    )
    add_replay(parser)
    parser.add_argument(
        "--step", type=int, metavar="N", help="which one, from 1 on (default: the last)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="PAGE", help="the page (default: FILE with .html at its end)"
    )
    parser.add_argument(
        "--perfetto",
        type=Path,
        metavar="JSON",
        help="write the same to this file in Perfetto's format, too",
    )
    parser.set_defaults(execute=view)


def add_replay(parser: argparse.ArgumentParser) -> None:
    """What is replayed, on what and how."""
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
        "--host",
        metavar="64G",
        help="bytes of the host's memory for what leaves the device; G is 2^30 (default: enough)",
    )
    parser.add_argument(
        "--disk",
        metavar="800G",
        help="bytes on a disk for what leaves the host's memory (default: there is none)",
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
    from lms_cli.trace import replaying, table

    machine = machine_of(args)
    trace = read(args.trace)
    with progress.step(f"replaying {trace.operators:,} operators"):
        result = replaying.replay(trace, machine, args.policy, recompute=args.recompute == "on")
    if args.json:
        print(json.dumps(result.report(), indent=2))
    else:
        table.show(result)
    return 0


def view(args: argparse.Namespace) -> int:
    """Replay the trace, and write what happened in a step."""
    from _lms_timeline import named, perfetto, recorded

    from lms_cli import files, progress
    from lms_cli.timeline import page
    from lms_cli.trace import replaying

    out = args.out or args.trace.with_suffix(".html")
    keep_trace(args.trace, out, args.perfetto)
    machine = machine_of(args)
    trace = read(args.trace)
    step = step_of(args.step, trace)
    with progress.step(f"replaying {trace.operators:,} operators"):
        recompute = args.recompute == "on"
        result, row = replaying.replay_step(trace, machine, args.policy, step, recompute=recompute)
        found = recorded.parse(row)
        names = named.read(args.trace)
        named.infer_kinds(names, found)
    if args.perfetto:
        files.write_text(args.perfetto, perfetto.text(trace.name, found, names))
    page.write(out, result, found, names)
    print(out)
    return 0


def keep_trace(trace: Path, *outputs: Path | None) -> None:
    """Refuse to write where the trace is.

    Raises:
        UsageError: one of the outputs is there.
    """
    from lms_cli.errors import UsageError

    if trace.resolve() in [path.resolve() for path in outputs if path is not None]:
        raise UsageError(f"the output would replace the trace, {trace}", "Name another file.")


def step_of(number: int | None, trace: Any) -> int | None:
    """The step, from 0 on; None: the last.

    Raises:
        UsageError: the trace does not have it.
        TraceError: nothing happens in the trace.
    """
    from lms_cli.errors import TraceError, UsageError

    if trace.operators == 0:
        raise TraceError("there is no operator in the trace", "Record a program that trains.")
    if number is not None and not 1 <= number <= max(trace.steps, 1):
        raise UsageError(
            f"there is no step {number} in the trace",
            f"It has {trace.steps or 'none: all of it is shown'}, counted from 1.",
        )
    return None if number is None else number - 1


def read(path: Path) -> Any:
    """A trace whose times are those of a device.

    Raises:
        TraceError: it is none.
    """
    from lms_cli import progress
    from lms_cli.trace import reader

    with progress.step(f"reading {path}"):
        trace = reader.read(path)
    refuse_host_times(trace.card)
    return trace


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

    given: dict[str, Any] = below_of(args)
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


def below_of(args: argparse.Namespace) -> dict[str, int]:
    """What there is below the device's memory: fields of the machine.

    Raises:
        UsageError: that is no size, or nothing would ever come to the disk.
    """
    from lms_cli import simulate
    from lms_cli.errors import UsageError

    disk = 0 if args.disk is None else simulate.parse_size(args.disk)
    if args.host is not None:
        return {"host": simulate.parse_host_memory("--host", args.host), "disk": disk}
    if disk:
        raise UsageError(
            "--disk alone: nothing leaves a host that has enough memory",
            "Say how much the host has: --host 64G.",
        )
    return {}


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
        with progress.step(f"checking {args.out}", brief=True):
            trace = reader.read(temporary)
    progress.note(f"{trace.operators:,} operators in {args.out}")
    return status if status >= 0 else 128 - status  # of a signal, as a shell reports it
