"""What a timeline of the simulated device says about a span of time.

Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

Span = tuple[int, int]  # begin and end, virtual nanoseconds
ENGINES = ("compute", "h2d", "d2h", "disk", "collective")
AGAIN = "again"  # the part of compute in which LMS makes bytes again


def read(path: Path, begin: int, end: int) -> dict[str, list[Span]]:
    """By engine, when it worked between `begin` and `end`: sorted, apart from each other.

    And of compute what was made again, which is in `compute`, too.
    """
    spans: dict[str, list[Span]] = {engine: [] for engine in (*ENGINES, AGAIN)}
    with path.open(encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            start, stop = max(row["start"], begin), min(row["end"], end)
            if start < stop:
                spans[row["engine"]].append((start, stop))
                if row["name"].startswith(f"{AGAIN} "):
                    spans[AGAIN].append((start, stop))
    return {engine: merged(found) for engine, found in spans.items()}


def merged(spans: Iterable[Span], gap: int = 0) -> list[Span]:
    """Sorted spans, those in one that touch or are at most `gap` nanoseconds apart."""
    result: list[Span] = []
    for start, stop in sorted(spans):
        if result and start <= result[-1][1] + gap:
            result[-1] = (result[-1][0], max(result[-1][1], stop))
        else:
            result.append((start, stop))
    return result


def length(spans: Iterable[Span]) -> int:
    """Nanoseconds in spans that are apart from each other."""
    return sum(stop - start for start, stop in spans)


def overlap(ones: list[Span], others: list[Span]) -> int:
    """Nanoseconds that are in both; each list is sorted and its spans apart from each other."""
    total, one, other = 0, 0, 0
    while one < len(ones) and other < len(others):
        start = max(ones[one][0], others[other][0])
        stop = min(ones[one][1], others[other][1])
        total += max(0, stop - start)
        if ones[one][1] < others[other][1]:
            one += 1
        else:
            other += 1
    return total
