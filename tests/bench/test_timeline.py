"""What is read from a timeline of the simulated device."""

from __future__ import annotations

import json

import pytest
from lms_bench import timeline


@pytest.mark.parametrize(
    ("spans", "gap", "expected"),
    [
        ([], 0, []),
        ([(5, 7), (0, 2)], 0, [(0, 2), (5, 7)]),
        ([(0, 2), (2, 4)], 0, [(0, 4)]),
        ([(0, 9), (2, 4), (8, 11)], 0, [(0, 11)]),
        ([(0, 2), (4, 6), (9, 10)], 2, [(0, 6), (9, 10)]),
    ],
)
def test_merged(spans, gap, expected):
    assert timeline.merged(spans, gap) == expected


@pytest.mark.parametrize(
    ("ones", "others", "nanoseconds"),
    [
        ([], [(0, 5)], 0),
        ([(0, 5)], [(5, 9)], 0),
        ([(0, 5)], [(3, 9)], 2),
        ([(0, 10)], [(1, 2), (4, 6), (9, 12)], 4),
        ([(0, 2), (3, 5), (8, 9)], [(1, 4), (8, 20)], 3),
    ],
)
def test_overlap(ones, others, nanoseconds):
    assert timeline.overlap(ones, others) == nanoseconds
    assert timeline.overlap(others, ones) == nanoseconds


def test_read_takes_what_is_in_the_span(tmp_path):
    rows = [
        ("compute", 0, 10),  # began before
        ("h2d", 5, 6),  # over by then
        ("compute", 10, 15),
        ("compute", 16, 17, "again aten::mm"),
        ("d2h", 12, 30),  # ends after
        ("h2d", 20, 22),  # begins after
        ("disk", 3, 9),
        ("collective", 19, 21),
    ]
    path = tmp_path / "timeline.jsonl"
    path.write_text(
        "".join(
            json.dumps(dict(zip(("engine", "start", "end", "name"), (*row, "aten::mm")))) + "\n"
            for row in rows
        )
    )
    assert timeline.read(path, 8, 20) == {
        "compute": [(8, 15), (16, 17)],
        "h2d": [],
        "d2h": [(12, 20)],
        "disk": [(8, 9)],
        "collective": [(19, 20)],
        "again": [(16, 17)],
    }
