"""`lms plan`: what a script would need and take on cards that are not there."""

from __future__ import annotations

import argparse
from typing import Any

from lms_cli.verbs import run

CARDS = ("RTX-4090-24GB", "A100-SXM-40GB", "H100-SXM-80GB")


def configure_parser(subparsers: Any) -> None:
    """Describe the verb's command line."""
    parser = subparsers.add_parser(
        "plan",
        help="say what a script would need and take on a card, without one",
        description="Run a few training steps of a script on simulated cards, in virtual time, and "
        "say how much memory it needs, of what, how fast it would train, and what LMS would do "
        "where it does not fit. Nothing is computed, so numbers that the script prints mean "
        "nothing, and torch.save writes nothing.",
    )
    parser.add_argument(
        "--card",
        action="append",
        metavar="NAME",
        help=f"repeatable; see `lms bench --list` (default: {', '.join(CARDS)})",
    )
    parser.add_argument(
        "--memory",
        metavar="24G",
        help="device memory that the program may use (default: 95 %% of the card's)",
    )
    parser.add_argument(
        "--host-memory", metavar="64G", help="host memory that LMS may use (default: 512G)"
    )
    parser.add_argument(
        "--parallel", type=int, metavar="N", help="runs at once (default: one per processor)"
    )
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    run.add_program(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Run the script on each card, and print what came of it."""
    import json

    from lms_cli import files, paths, progress, simulate
    from lms_cli.plan import planning, running, showing
    from lms_cli.verbs import bench

    cards, parallel = cards_of(args), bench.parallel_of(args)
    host_memory = host_memory_of(args)
    environment, overlay = run.environments_of(args)
    simulate.build(environment)
    program = running.Program((args.script, *args.arguments), environment, overlay)
    folder = running.folder_of(program, paths.home())
    with files.locked(folder):
        running.make_anew(folder)
        runner = running.Runner(program, folder, host_memory)
        doing = f"trying {program.name} on {len(cards)} simulated card(s)"
        with progress.step(doing, len(cards)) as advance:
            plans = planning.plan(runner, cards, parallel, advance)
        if args.json:
            print(json.dumps(showing.report(program, plans, folder), indent=1))
        else:
            showing.show(program, plans, folder)
    return 0


def cards_of(args: argparse.Namespace) -> list[Any]:
    """The cards that the command line asks for.

    Raises:
        UsageError: there is no such card, or the memory is no size.
    """
    from lms_cli import simulate
    from lms_cli.plan import planning

    memory = None if args.memory is None else simulate.parse_capacity(args.memory)
    return [planning.card(name, memory) for name in dict.fromkeys(args.card or CARDS)]


def host_memory_of(args: argparse.Namespace) -> int:
    """Bytes of host memory that LMS may use.

    Raises:
        UsageError: that is no size, or 0, by which LMS would choose.
    """
    from lms_cli import simulate
    from lms_cli.bench.cells import HOST_LIMIT

    if args.host_memory is None:
        return HOST_LIMIT
    return simulate.parse_host_memory("--host-memory", args.host_memory)
