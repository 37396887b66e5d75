"""`lms trace view`: its page in a real Chromium, and its command line."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from _lms_timeline import named, recorded
from lms_cli import paths
from lms_cli.environments import toolbox
from lms_cli.errors import LmsError
from lms_cli.timeline import page
from lms_cli.trace import reader, replaying
from replays import machine
from support import browser
from support.browser import Browser
from synthetic_trace import HEADER, Transformer, alloc, free, op, write

OPTIONS = ("--capacity", "350M", "--h2d", "10G", "--d2h", "10G")
# What is drawn of all the events, and the time that is shown.
DRAWN = """(() => {
  const counts = events.kinds.map(kind => model(kind.source).data.count);
  return {events: events.kinds.map(kind => kind.begin.length).reduce((a, b) => a + b),
          shown: counts.flat().reduce((a, b) => a + b), drawn: counts.flat().length};
})()"""
# What is drawn on the lanes of a disk.
OF_DISK = """Object.fromEntries(events.kinds.filter(kind => kind.source.includes("disk"))
  .map(kind => [kind.source, model(kind.source).data.count.length]))"""
TEXT = "document.body.innerText"
TIME = "[time().start, time().end]"
CSS = "getComputedStyle(document.body).backgroundColor"
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
FETCHED = """[...document.querySelectorAll("[src], link[href]")]
  .map(element => element.src || element.href).filter(address => !address.startsWith("data:"))
  .concat(performance.getEntriesByType("resource").map(entry => entry.name))"""

# The beginning of an operator is all that is in sight then.
BEGINNING = """(() => {
  const {begin: begins, end: ends} = events.kinds[0];
  const which = begins.findIndex((begin, place) => ends[place] - begin > 0.3);
  show(begins[which], begins[which] + 0.1);
})()"""
# All texts that are to be seen in what Bokeh makes, which is in shadow trees.
TIPS = """(() => {
  const found = [], look = root => root.querySelectorAll("*").forEach(element => {
    if (!element.shadowRoot || !element.checkVisibility({visibilityProperty: true})) return;
    found.push(element.shadowRoot.textContent);
    look(element.shadowRoot);
  });
  look(document);
  return found.join();
})()"""


@pytest.fixture(scope="module")
def chromium() -> Browser:
    return browser.find()


def lms(trace: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(paths.SCRIPT), "trace", "view", str(trace), *OPTIONS, *options]
    return subprocess.run(command, capture_output=True, text=True)


def view(trace: Path, *options: str) -> Path:
    """The page of a trace."""
    page = trace.with_name("page.html")
    result = lms(trace, "--out", str(page), *options)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{page}\n"
    return page


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a step with copies, with bytes that are made again and with waits."""
    trace = tmp_path_factory.mktemp("trained") / "trace.jsonl"
    trace.write_text(Transformer(layers=8, steps=14, again=True).text())
    return view(trace, "--perfetto", str(trace.with_name("perfetto.json")))


def test_a_page(chromium: Browser, trained: Path) -> None:
    steps = [{"run": script} for script in (DRAWN, TIME, PAINT, FETCHED)]
    visit = chromium.visit(trained, *steps)
    drawn, (begin, end), paint, fetched = visit.results
    rows = json.loads(trained.with_name("perfetto.json").read_text())["traceEvents"]
    recorded = sum(row["ph"] == "X" for row in rows)
    assert visit.errors == []
    assert drawn["events"] == drawn["shown"] == recorded
    assert begin == 0 and 50 < end < 200
    assert paint < 1000  # milliseconds
    assert fetched == []


def test_zooming_and_moving(chromium: Browser, trained: Path) -> None:
    acts: list[dict[str, Any]] = [
        {"key": "+"},
        {"key": "Right"},
        {"key": "0"},
        {"wheel": [700, 200, 2]},
        {"key": "0"},
        {"run": "document.querySelectorAll('button')[10].click()"},
    ]
    looks = [{"run": TIME}, {"run": DRAWN}]
    visit = chromium.visit(trained, *looks, *itertools.chain(*([act, *looks] for act in acts)))
    times, counts = visit.results[0:12:2], [row["shown"] for row in visit.results[1:12:2]]
    (_, whole), zoomed, moved, back, wheeled, again = times
    assert zoomed == pytest.approx([whole / 4, 3 * whole / 4])
    assert moved == pytest.approx([3 * whole / 8, 7 * whole / 8])
    assert back == again == [0, whole]
    assert 0 < wheeled[1] - wheeled[0] < whole
    assert counts[1] < counts[0] and counts[3] == counts[0] == counts[5]
    stall = re.findall(r'data-begin="([0-9.]+)" data-end="([0-9.]+)"', trained.read_text())[10]
    shown = visit.results[13]  # of the longest stall, the first row of the second table
    assert shown[0] <= float(stall[0]) < float(stall[1]) <= shown[1]
    assert shown[1] - shown[0] < whole / 4
    assert visit.errors == []


def test_a_pointer_tells_of_an_event(chromium: Browser, trained: Path) -> None:
    acts: list[dict[str, Any]] = [{"run": BEGINNING}, {"point": [700, 150]}, {"run": TIPS}]
    visit = chromium.visit(trained, *acts, {"point": [700, 500]}, {"run": TIPS})
    assert re.search(r"aten::\w+ [0-9.]+ ms, from [0-9.]+ ms", visit.results[1])
    assert re.search(r"reads \d+ \([0-9.]+ MiB\)", visit.results[1])
    assert re.search(r"activation: ?[0-9.]+ GiB.*sum: ?[0-9.]+ GiB", visit.results[2])


def test_dark(chromium: Browser, trained: Path) -> None:
    light = chromium.visit(trained, {"run": CSS})
    dark = chromium.visit(trained, {"run": CSS}, dark=True)
    assert light.results == ["rgb(255, 255, 255)"]
    assert dark.results == ["rgb(18, 18, 18)"]
    assert dark.errors == []


def test_a_hundred_thousand_events(chromium: Browser, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(Transformer(layers=8, steps=1, parallel=6300).text())
    page = view(trace)
    assert page.stat().st_size < 8e6
    timed = (
        "(() => { const begin = performance.now(); draw(); return performance.now() - begin; })()"
    )
    looks = [{"run": DRAWN}, {"run": timed}]
    visit = chromium.visit(page, *looks, *[{"key": "+"}] * 4, *looks)
    (whole, first, zoomed, last) = visit.results
    assert whole["events"] == whole["shown"] > 100_000
    # For each kind no more than there are pixels, and quickly.
    assert 0 < whole["drawn"] < 10_000 and 0 < zoomed["drawn"] < 10_000
    assert first < 200 and last < 200  # milliseconds
    assert visit.errors == []


def test_a_disk(chromium: Browser, tmp_path: Path) -> None:
    """Two storages leave the host, which has memory for one, and one is read again."""
    rows = [row for digit in "012" for row in (alloc(int(digit)), op("", digit))]
    trace = write(tmp_path / "trace.jsonl", [HEADER, *rows, free(2), op("0", "")])
    options = ("--capacity", "10M", "--host", "15M", "--disk", "1G", "--policy", "original")
    visit = chromium.visit(view(trace, *options), {"run": OF_DISK}, {"run": TEXT})
    assert visit.errors == []
    lanes, text = visit.results
    assert lanes == {"disk to host: read from disk": 1, "host to disk: written to disk": 2}
    assert "read from disk\n9.4 MiB in 1.41 ms" in text  # at 7 GB/s
    assert "written to disk\n18.9 MiB in 3.30 ms" in text  # at 6 GB/s


# --- the command line ---


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "the file is empty"),
        ([HEADER], "there is no operator in the trace"),
        ([{**HEADER, "lms_trace": 9}, op("", "")], "version 9 of the format; 1 and 2 are known"),
        ([HEADER, alloc(0), op("", "0", 1e6), op("0", "", "x")], "not a time"),
    ],
)
def test_what_is_no_trace(tmp_path: Path, rows: list[Any], message: str) -> None:
    trace = write(tmp_path / "trace.jsonl", rows)
    result = lms(trace)
    assert (result.returncode, result.stdout) == (11, "")
    assert message in result.stderr and "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == [trace]


@pytest.mark.parametrize(
    ("name", "options", "status", "message"),
    [
        ("gone.jsonl", (), 11, "cannot read the trace"),
        ("trace.jsonl", ("--step", "2"), 2, "there is no step 2"),
        ("trace.jsonl", ("--step", "0"), 2, "there is no step 0"),
        ("trace.jsonl", ("--policy", "best"), 2, "there is no policy best"),
        ("trace.jsonl", ("--out", "{folder}/trace.jsonl"), 2, "would replace the trace"),
        ("trace.jsonl", ("--perfetto", "{folder}/trace.jsonl"), 2, "would replace the trace"),
        ("trace.jsonl", ("--out", "{folder}"), 13, "Is a directory"),
        ("trace.jsonl", ("--out", "/proc/nowhere/page.html"), 13, "/proc/nowhere"),
    ],
)
def test_what_cannot_be_done(
    tmp_path: Path, name: str, options: tuple[str, ...], status: int, message: str
) -> None:
    trace = write(tmp_path / "trace.jsonl", [HEADER, alloc(0), op("", "0")])
    before = trace.read_text()
    words = [word.format(folder=tmp_path) for word in options]
    result = lms(tmp_path / name, *words)
    assert (result.returncode, result.stdout) == (status, "")
    assert message in result.stderr and "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == [trace] and trace.read_text() == before


def test_a_drawing_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = write(tmp_path / "trace.jsonl", [HEADER, alloc(0), op("", "0")])
    bare = tmp_path / "bare" / "bin" / "python"
    bare.parent.mkdir(parents=True)
    bare.write_text("#!/bin/sh\necho \"No module named 'bokeh'\" >&2\nexit 1\n")
    bare.chmod(0o755)
    monkeypatch.setattr(toolbox, "make", lambda lock, purpose: bare)
    result, row = replaying.replay_step(
        reader.read(trace), machine(1), "original", None, recompute=True
    )
    names = named.read(trace)
    with pytest.raises(LmsError, match=f"(?s)No module named 'bokeh'.*Remove {bare.parents[1]}"):
        page.write(tmp_path / "page.html", result, recorded.parse(row), names)
    assert not (tmp_path / "page.html").exists()


def test_a_trace_without_steps_is_shown_whole(tmp_path: Path) -> None:
    trace = write(tmp_path / "trace.jsonl", [HEADER, alloc(0), op("", "0"), op("0", "0")])
    assert "by hand: step 1 of 1" in view(trace).read_text()
