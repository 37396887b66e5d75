"""`lms bench`: how fast LMS and its rivals train what is larger than the device."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lms_bench.catalogue import ITERATIONS

from lms_cli.environments import options

CARD = "A100-SXM-40GB"
MOST_DEVICES = 8  # each is a process
TURN_SECONDS = 30.0
JOBS_RATIO = 2.0  # of jobs, unless the user says otherwise


def configure_parser(subparsers: Any) -> None:
    """Describe the verb's command line."""
    parser = subparsers.add_parser(
        "bench",
        help="compare LMS with its rivals in virtual time",
        description="Train models on simulated cards whose memory is too small for them, with LMS "
        "and with what else there is, and compare the times. A run that was interrupted goes on "
        "where it stopped.",
    )
    parser.add_argument(
        "--workload",
        action="append",
        metavar="NAME[@BATCH]",
        help="repeatable (default: all, with their usual batch)",
    )
    parser.add_argument(
        "--rival",
        action="append",
        metavar="NAME",
        help="repeatable (default: all that --list does not mark)",
    )
    parser.add_argument(
        "--ratio",
        action="append",
        type=float,
        metavar="R",
        help="peak need over device memory; repeatable (default: 0.9, 1.25, 1.5, 2, 3.7, 8)",
    )
    parser.add_argument(
        "--card", action="append", metavar="NAME", help=f"repeatable (default: {CARD})"
    )
    parser.add_argument(
        "--iterations",
        type=int,
        default=ITERATIONS,
        metavar="N",
        help=f"the mean is taken from the fourth on (default: {ITERATIONS})",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="with torch.compile around the models, of all rivals; not around the optimizers",
    )
    parser.add_argument(
        "--host",
        default="512G",
        metavar="64G",
        help="memory of the host for what LMS pages out (default: 512G)",
    )
    parser.add_argument(
        "--disk",
        default="0",
        metavar="800G",
        help="room on a disk for what leaves that memory (default: there is no disk)",
    )
    parser.add_argument(
        "--devices",
        type=int,
        default=1,
        metavar="N",
        help="shard each model by FSDP2 over so many cards (default: 1, not sharded); with --jobs, "
        "the cards that these share",
    )
    parser.add_argument(
        "--jobs",
        metavar="NAME[@BATCH][:STEPS],...",
        help="instead, train these models at once, as jobs of a pool, one by one, and without LMS",
    )
    parser.add_argument(
        "--turn-seconds",
        type=float,
        default=TURN_SECONDS,
        metavar="S",
        help=f"of a job's turn on a card (default: {TURN_SECONDS:g})",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="for results and plots (default: .lms/bench)"
    )
    parser.add_argument(
        "--parallel", type=int, metavar="N", help="runs at once (default: one per processor)"
    )
    parser.add_argument(
        "--bound",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="trace each workload, and say what no engine could beat (default: yes)",
    )
    parser.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        help="also write the tables for docs/benchmarks/, after the mark if the file has one",
    )
    options.add_arguments(parser)
    parser.add_argument(
        "--list", action="store_true", help="print workloads, rivals and cards, and do nothing else"
    )
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Run what is missing, then show everything; the status is 0 unless an ideal failed."""
    from lms_cli import paths, simulate
    from lms_cli.bench import cells, running, tables
    from lms_cli.environments import lms_environment

    if args.list:
        tables.show_catalogue()
        return 0
    chosen, parallel = None if args.jobs else choices(args), parallel_of(args)
    wanted = jobs_of(args) if args.jobs else ()
    environment = options.chosen(args)
    lms_environment.installed_version(environment)
    built = simulate.build(environment)
    folder = (args.out or paths.home() / "bench").resolve()
    known = cells.fingerprints(environment, built)
    runner = running.Runner(environment, built, folder, known, parallel)
    if chosen is None:
        return execute_jobs(args, runner, wanted)
    results = running.measure(runner, *chosen, args.iterations)
    if args.bound:
        results.bounds = running.bounds(runner, results)
    report(results, environment, folder, args)
    return 0 if all(results.ideal(subject)[1].ok for subject in results.subjects()) else 1


def execute_jobs(args: argparse.Namespace, runner: Any, wanted: Any) -> int:
    """The same for jobs; the status is 0 unless a run failed."""
    from lms_cli.bench import jobs, tables

    ratio = args.ratio[0] if args.ratio else JOBS_RATIO
    compared = jobs.compare(runner, wanted, args.devices, ratio, args.turn_seconds)
    tables.print_all(jobs.tables(compared), jobs.reasons(compared))
    command = command_of(args)
    written = jobs.write(compared, runner.folder, command)
    if args.markdown:
        new = tables.in_markdown(command, jobs.tables(compared), jobs.reasons(compared))
        write_page(args.markdown, new)
    tell(jobs.draw(runner.environment, written), written)
    return 0 if compared.ok else 1


def report(results: Any, environment: Any, folder: Path, args: argparse.Namespace) -> None:
    """Print the tables, and write the files."""
    from lms_cli.bench import reporting, tables

    tables.show(results)
    written = reporting.write(results, folder, command_of(args))
    if args.markdown:
        write_page(args.markdown, tables.markdown(results, command_of(args)))
    tell(reporting.draw(environment, folder), written)


def write_page(path: Path, new: str) -> None:
    """Put tables into a page, after its mark if it has one."""
    from lms_cli import files
    from lms_cli.bench import tables

    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    files.write_text(path, tables.page(text, new))


def tell(pictures: list[Path], results: Path) -> None:
    """Print which files were written."""
    for picture in pictures:
        print(f"picture: {picture}")
    print(f"results: {results}")


def choices(args: argparse.Namespace) -> tuple[list[Any], list[str], list[float]]:
    """The subjects, rivals and ratios that the command line asks for.

    Raises:
        UsageError: one of them does not exist, or makes no sense.
    """
    from lms_bench import catalogue

    from lms_cli import simulate
    from lms_cli.bench import cells
    from lms_cli.errors import UsageError

    workloads = args.workload or [entry.name for entry in catalogue.WORKLOADS if entry.usual]
    rivals = args.rival or [entry.name for entry in catalogue.RIVALS if entry.usual]
    entries = [cells.named("rival", name) for name in rivals]
    if args.compile:
        rivals = compilable(entries, named=bool(args.rival))
    check_devices(args.devices, entries)
    ratios = args.ratio or list(cells.RATIOS)
    for ratio in ratios:
        if not 0.1 <= ratio <= 1000:
            raise UsageError(
                f"--ratio {ratio:g}: out of range", "Give need over memory: 0.1 to 1000."
            )
    least = catalogue.FIRST_COUNTED + 1
    if args.iterations < least:
        raise UsageError(
            f"--iterations {args.iterations}: too few to measure one", f"Give {least} or more."
        )
    below = (simulate.parse_host_memory("--host", args.host), simulate.parse_size(args.disk))
    subjects = [
        cells.subject(workload, card, args.compile, *below, args.devices)
        for card in args.card or [CARD]
        for workload in workloads
    ]
    return list(dict.fromkeys(subjects)), list(dict.fromkeys(rivals)), sorted(set(ratios))


def check_devices(devices: int, rivals: list[Any]) -> None:
    """Whether a training over so many devices makes sense, with these rivals.

    Raises:
        UsageError: it does not.
    """
    from lms_cli.errors import UsageError

    if not 1 <= devices <= MOST_DEVICES:
        raise UsageError(f"--devices {devices}: out of range", f"Give 1 to {MOST_DEVICES}.")
    for rival in rivals:
        if rival.shards and devices == 1:
            raise UsageError(f"{rival.name} shards the model", "Give --devices 2 or more.")


def compilable(rivals: list[Any], named: bool) -> list[str]:
    """The names of the rivals that can train a compiled model; says which are left out.

    Raises:
        UsageError: one of them cannot, and the user named it.
    """
    from lms_cli import progress
    from lms_cli.errors import UsageError

    for rival in rivals:
        if rival.eager_because and named:
            raise UsageError(
                f"{rival.name} cannot train a compiled model: {rival.eager_because}",
                "Leave it out, or leave --compile out.",
            )
        if rival.eager_because:
            progress.note(f"{rival.name} is left out: {rival.eager_because}")
    return [rival.name for rival in rivals if not rival.eager_because]


def parallel_of(args: argparse.Namespace) -> int:
    """How many cells run at once.

    Raises:
        UsageError: less than one.
    """
    import os

    from lms_cli.errors import UsageError

    if args.parallel is not None and args.parallel < 1:
        raise UsageError(f"--parallel {args.parallel}: at least one run must go on at a time")
    return int(args.parallel or os.cpu_count() or 1)


def jobs_of(args: argparse.Namespace) -> tuple[Any, ...]:
    """The jobs that the command line asks for.

    Raises:
        UsageError: one of them does not exist, or other options make no sense with them.
    """
    from lms_cli import simulate
    from lms_cli.bench import jobs
    from lms_cli.errors import UsageError

    for option in ("workload", "rival", "compile"):
        if getattr(args, option):
            raise UsageError(f"--{option} and --jobs: jobs are only compared with each other alone")
    for option in ("ratio", "card"):
        if len(getattr(args, option) or []) > 1:
            raise UsageError(f"--{option}: jobs share cards of one kind and size, so give one")
    if not 1 <= args.devices <= simulate.MOST_DEVICES:
        raise UsageError(
            f"--devices {args.devices}: out of range", f"Give 1 to {simulate.MOST_DEVICES}."
        )
    if not args.turn_seconds > 0:
        raise UsageError(f"--turn-seconds {args.turn_seconds:g}: a turn takes some time")
    card = args.card[0] if args.card else CARD
    return tuple(jobs.parse(text, card) for text in args.jobs.split(","))


def command_of(args: argparse.Namespace) -> str:
    """The command line that gives the same figures."""
    words = ["./scripts/lms", "bench"]
    for option in ("workload", "rival", "ratio", "card"):
        for value in getattr(args, option) or []:
            words += [f"--{option}", f"{value:g}" if option == "ratio" else value]
    if args.compile:
        words.append("--compile")
    for option, usual in (("host", "512G"), ("disk", "0")):
        if (value := getattr(args, option)) != usual:
            words += [f"--{option}", value]
    if args.devices != 1:
        words += ["--devices", str(args.devices)]
    if args.jobs:
        words += ["--jobs", args.jobs]
    if args.turn_seconds != TURN_SECONDS:
        words += ["--turn-seconds", f"{args.turn_seconds:g}"]
    if not args.bound:
        words.append("--no-bound")
    if args.iterations != ITERATIONS:
        words += ["--iterations", str(args.iterations)]
    return " ".join(words)
