"""The table that a replay prints."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from lms_cli.trace.replaying import Result


def show(result: Result) -> None:
    """Print what a replay found, a row for each thing."""
    row = result.report()
    table = Table(title=f"{row['name']} with the policy {row['policy']}")
    table.add_column("")
    has_steps = result.trace.has_steps
    table.add_column("a step" if has_steps else "whole trace", justify="right")
    table.add_column("share", justify="right")
    table.add_row("peak need", _mib(row["peak_bytes"]), _times(row["peak_bytes"], row["capacity"]))
    table.add_row("time", _ms(row["step_us"]))
    table.add_row("  ideal", _ms(row["ideal_us"]), _percent(row["share_of_ideal"]))
    table.add_row("  reference bound", _ms(row["bound_us"]), _percent(row["share_of_bound"]))
    table.add_row("  floor", _ms(row["floor_us"]), _percent(row["share_of_floor"]))
    for way in ("in", "out"):
        moved, bound = row[f"{way}_bytes"], row[f"bound_{way}_bytes"]
        table.add_row(f"paged {way}", _mib(moved))
        table.add_row("  of the bound's", _mib(bound), _times(moved, bound))
    if row["disk"]:
        table.add_row("read from disk", _mib(row["read_bytes"]))
        table.add_row("written to disk", _mib(row["written_bytes"]))
    table.add_row("made again", _mib(row["made_bytes"]))
    table.add_row("  by operators", _ms(row["making_us"]))
    table.add_row("copying", _ms(row["copying_us"]))
    table.add_row("  hidden", _ms(row["hidden_us"]), _percent(row["hidden_share"]))
    for cause, stalled in row["stalls_us"].items():
        table.add_row(f"waited: {cause}", _ms(stalled))
    Console().print(table)


def _times(part: float, whole: float) -> str:
    return f"{part / whole:.2f}x" if whole else ""


def _mib(size: float) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1e3:,.3f} ms"


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"
