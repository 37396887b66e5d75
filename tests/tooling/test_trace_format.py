"""Reading traces: what is accepted, and what is said of every way to break the format."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lms_cli.errors import TraceError
from lms_cli.trace import reader
from synthetic_trace import HEADER, alloc, free, op, write

LINE = '{"alloc": 7, "bytes": 512, "kind": "other"}\n'
START = '{"lms_trace": 1, "name": "n", "card": "c"}\n' + LINE
VERSION_2 = START.replace('"lms_trace": 1', '"lms_trace": 2')
AGAIN = '{{"op": "a", "us": 1, "reads": [7], "writes": [], "again": {again}}}\n'
OP = '{{"op": "a", "us": {us}, "reads": {reads}, "writes": []}}\n'


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        ("", 1, "the file is empty"),
        (LINE, 1, "a header is expected"),
        ("[1]\n", 1, "a header is expected"),
        ('{"lms_trace": 3, "name": "n", "card": "c"}\n', 1, "version 3 of the format; 1 and 2"),
        ('{"lms_trace": true, "name": "n", "card": "c"}\n', 1, "version true"),
        ('{"lms_trace": 1, "card": "c"}\n', 1, "the header's name is null, not a text"),
        (START + "\n", 3, "it is not JSON"),
        (START + "{'free': 7}\n", 3, "it is not JSON"),
        (START + '{"free": 7\n' + LINE, 3, "it is not JSON"),
        (START + '{"free": ', 3, "it is cut off"),
        (START + "[" * 100_000 + "\n", 3, "it is not JSON"),
        (START + "[]\n", 3, "a JSON object is expected"),
        (START + '{"malloc": 8}\n', 3, "an event is expected: one of op, alloc, free, step"),
        (START + LINE, 3, "id 7 is allocated already"),
        (START + '{"free": 7}\n' + LINE, 4, "id 7 was freed; ids are not used again"),
        (START + '{"free": 8}\n', 3, "id 8 was never allocated"),
        (START + '{"free": 7}\n{"free": 7}\n', 4, "id 7 was freed before"),
        (START + '{"free": 7, "us": 1}\n', 3, "free has no field us"),
        (START + '{"free": "7"}\n', 3, 'the id "7" is not an integer'),
        (START + '{"free": true}\n', 3, "the id true is not an integer"),
        (START + OP.format(us=1, reads="[7, 8]"), 3, "id 8 was never allocated"),
        (START + '{"free": 7}\n' + OP.format(us=1, reads="[7]"), 4, "id 7 was freed before"),
        (START + OP.format(us=1, reads="7"), 3, "reads and writes are lists of ids"),
        (START + OP.format(us=1, reads="[[7]]"), 3, "the id [7] is not an integer"),
        (START + OP.format(us=-1, reads="[]"), 3, "us is -1, not a time"),
        (START + OP.format(us="NaN", reads="[]"), 3, "us is NaN, not a time"),
        (START + OP.format(us="1e999", reads="[]"), 3, "us is Infinity, not a time"),
        (START + OP.format(us="true", reads="[]"), 3, "us is true, not a time"),
        (START + OP.format(us="5e10", reads="[]") * 2, 4, "the operators take more than 20 hours"),
        (VERSION_2 + OP.format(us=1, reads="[]"), 3, "op without again"),
        (VERSION_2 + AGAIN.format(again="[7]"), 3, "again is a list of ids among writes"),
        (VERSION_2 + AGAIN.format(again="7"), 3, "again is a list of ids among writes"),
        (START + '{"op": "a", "reads": [], "writes": []}\n', 3, "op without us"),
        (START + '{"op": 1, "us": 1, "reads": [], "writes": []}\n', 3, "op is 1, not a name"),
        (START + '{"alloc": 8, "bytes": -1, "kind": "other"}\n', 3, "bytes is -1, not a size"),
        (START + '{"alloc": 8, "bytes": 1.5, "kind": "other"}\n', 3, "bytes is 1.5, not a size"),
        (START + '{"alloc": 8, "bytes": 1, "kind": "tensor"}\n', 3, 'kind is "tensor"; it is one'),
        (START + '{"alloc": 8, "bytes": 1}\n', 3, "alloc without kind"),
        (START + '{"step": "one"}\n', 3, 'step is "one", not an integer'),
    ],
)
def test_broken_traces(tmp_path: Path, text: str, line: int, complaint: str) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError, match=re.escape(f"{path}, line {line}: {complaint}")):
        reader.read(path)


def test_a_trace_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "binary"
    path.write_bytes(b"\x1f\x8b\x08\xff")
    with pytest.raises(TraceError, match="line 1: it is not UTF-8 text"):
        reader.read(path)
    with pytest.raises(TraceError, match="cannot read the trace"):
        reader.read(tmp_path / "missing")


def test_what_is_read(tmp_path: Path) -> None:
    rows = [HEADER, alloc(5, 600), alloc(3, 0), {"step": 1}, op("55", "3", 12.5), free(5)]
    trace = reader.read(write(tmp_path / "trace", rows))
    assert (trace.name, trace.card, trace.operators, trace.peak_bytes) == (
        "by hand",
        "none",
        1,
        600,
    )
    name = trace.words[6]
    assert list(trace.words) == [1, 600, 1, 0, 3, 4, name, 12_500_000, 0, 2, 0, 3, 2, 0]
