"""`lms run`: run a PyTorch program in the LMS environment."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lms_cli.environments import options

FLAGS = ("--json",)


def configure_parser(subparsers: Any) -> None:
    """Describe the verb's command line."""
    parser = subparsers.add_parser(
        "run",
        help="run a PyTorch program with LMS",
        description="Run a PyTorch program with LMS, on the simulated device if there is no GPU. "
        "The exit status is the program's.",
    )
    add_arguments(parser)
    parser.set_defaults(execute=execute)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what says which program runs, and how."""
    parser.add_argument(
        "--lms",
        choices=("on", "off", "chaos"),
        default="on",
        help="chaos pages out after every operator",
    )
    parser.add_argument(
        "--device",
        choices=("sim", "cuda"),
        help="default: cuda if this machine has a GPU, else sim",
    )
    parser.add_argument(
        "--capacity", metavar="64M", help="memory of a simulated device (default: 1G)"
    )
    parser.add_argument(
        "--devices", type=int, metavar="N", help="number of simulated devices (default: 1)"
    )
    parser.add_argument(
        "--kernels",
        choices=("inline", "async"),
        help="when simulated kernels run (default: inline)",
    )
    parser.add_argument(
        "--card",
        metavar="NAME",
        help="simulate this card in virtual time: nothing is computed; its memory is the default "
        "of --capacity (see `lms bench --list`)",
    )
    parser.add_argument(
        "--limit", metavar="SIZE", help="device memory that LMS may use, for example 4G"
    )
    add_program(parser)


def add_program(parser: argparse.ArgumentParser) -> None:
    """Add what says which program runs, and in which environment."""
    parser.add_argument(
        "--with",
        dest="packages",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="install it first; repeatable",
    )
    options.add_arguments(parser)
    parser.add_argument("script", metavar="SCRIPT", help="a Python program, or -m MODULE")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="passed to the program"
    )


def protect(arguments: list[str]) -> list[str]:
    """The command line, with `--` before the `-m` of a program, which argparse takes for an option.

    Every option before a program has a value, but for `FLAGS`.
    """
    before = {("run",): 0, ("plan",): 0, ("trace", "record"): 1}  # arguments before the program
    for verb, count in before.items():
        if tuple(arguments[: len(verb)]) != verb:
            continue
        at = len(verb)
        while at < len(arguments):
            word = arguments[at]
            if word == "-m":
                return [*arguments[:at], "--", *arguments[at:]]
            if word == "--" or (not word.startswith("-") and count == 0):
                break
            count -= not word.startswith("-")
            has_value = word.startswith("-") and "=" not in word and word not in FLAGS
            at += 2 if has_value else 1
    return arguments


def execute(args: argparse.Namespace) -> int:
    """Replace this process by the program's, so that its status and signals are the program's."""
    import os
    import sys

    command, variables = command_of(args)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, variables)


def command_of(args: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """The program's command line and environment variables, everything it needs made."""
    from lms_cli import programs

    settings = settings_of(args)
    environment, overlay = environments_of(args)
    variables = programs.variables(environment, settings, overlay)
    return [str(overlay.python), args.script, *args.arguments], variables


def environments_of(args: argparse.Namespace) -> tuple[Any, Any]:
    """The environment with the LMS wheel, and the one that runs the program, both made.

    Raises:
        UsageError: there is no such program.
    """
    from lms_cli.environments import lms_environment
    from lms_cli.errors import UsageError

    if not args.script.startswith("-") and not Path(args.script).is_file():
        raise UsageError(f"there is no program {args.script}")
    environment = options.chosen(args)
    lms_environment.installed_version(environment)
    return environment, lms_environment.with_packages(environment, args.packages)


def settings_of(args: argparse.Namespace) -> Any:
    """The settings that the command line asks for.

    Raises:
        UsageError: options that do not fit together, or are no sizes.
    """
    from lms_cli import programs, simulate
    from lms_cli.errors import UsageError

    device = args.device or simulate.default_device()
    simulated = ("capacity", "devices", "kernels", "card")
    given = [f"--{name}" for name in simulated if getattr(args, name) is not None]
    if device == "cuda" and given:
        raise UsageError(
            f"{', '.join(given)}: only for the simulated device",
            "Add --device sim, or use --limit.",
        )
    if args.card is not None:
        simulate.card(args.card)
        if args.kernels is not None:
            raise UsageError("--kernels: not with --card", "In virtual time no kernel runs.")
    if args.devices is not None and not 1 <= args.devices <= simulate.MOST_DEVICES:
        raise UsageError(
            f"--devices {args.devices}: there can be 1 to {simulate.MOST_DEVICES} simulated devices"
        )
    return programs.Settings(
        lms=args.lms,
        device=device,
        capacity=None if args.capacity is None else simulate.parse_capacity(args.capacity),
        devices=1 if args.devices is None else args.devices,
        kernels="timed" if args.card else args.kernels or "inline",
        card=args.card,
        limit=None if args.limit is None else simulate.parse_size(args.limit),
    )
