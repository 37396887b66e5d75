"""Saying what is going on: on standard error, so that standard output stays a result."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def step(doing: str) -> Iterator[None]:
    """Show a long step while it runs, and how long it took when it is done."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    start = time.monotonic()
    if console.is_terminal:
        with console.status(f"{doing} ..."):
            yield
    else:
        note(f"{doing} ...")
        yield
    note(f"{doing}: done in {time.monotonic() - start:.1f} s")


def note(text: str) -> None:
    """Say one line."""
    print(f"lms: {text}", file=sys.stderr, flush=True)
