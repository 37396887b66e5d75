"""The frame of `lms demo`, around a program that only writes reports."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from lms_cli.demo import demonstration
from lms_cli.environments.lms_environment import Environment
from lms_cli.errors import LmsError

NEED = 400 << 20  # bytes

PROGRAM = """
import argparse, json, os
parser = argparse.ArgumentParser()
for name in ("--model", "--mode", "--steps", "--json"):
    parser.add_argument(name)
args = parser.parse_args()
limit = os.environ.get("PYTORCH_LMS_LIMIT")
report = {
    "status": "oom" if args.mode == "off" else "ok",
    "steps": 0 if args.mode == "off" else int(args.steps),
    "losses": [] if args.mode == "off" else [2.5, 2.25],
    "weights_sha256": "" if args.mode == "off" else "abc",
    "needed_bytes": %(need)d if args.mode == "unlimited" else 0,
    "peak_device_bytes": int(limit) if limit else %(need)d,
    "paged_in_bytes": 3 << 20,
    "paged_out_bytes": 5 << 20,
    "timeline": [[n, n << 20, (400 - n) << 20] for n in range(100)],
}
report.update({"unlimited": %(unlimited)r, "off": %(off)r, "on": %(on)r}[args.mode])
assert (args.mode == "on") == (os.environ.get("PYTORCH_LMS") == "1")
with open(args.json, "w") as stream:
    json.dump(report, stream)
"""


@pytest.fixture
def environment() -> Environment:
    return Environment(Path(sys.prefix))


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: Environment) -> Any:
    """Compare three runs of a program whose reports differ from the good ones as given."""

    def run(**changes: dict[str, object]) -> demonstration.Comparison:
        modes = {mode: changes.get(mode, {}) for mode in ("unlimited", "off", "on")}
        program = tmp_path / "program.py"
        program.write_text(PROGRAM % {"need": NEED, **modes})
        monkeypatch.setattr(demonstration, "PROGRAM", program)
        monkeypatch.setenv("LMS_HOME", str(tmp_path / "home"))
        return demonstration.compare(environment, "gpt", 2, "cuda", 4)

    return run


def test_what_was_claimed_was_seen(
    compare: Any, environment: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    comparison = compare()
    assert list(comparison.failures(4)) == []
    assert comparison.capacity == NEED // 4
    demonstration.show([comparison], "cuda")
    table = capsys.readouterr().out
    for row in ("out of memory", "2 steps", "400.0 MiB", "3.0 MiB", "5.0 MiB", "4.00x", "yes"):
        assert row in table
    assert "NO" not in table
    picture = demonstration.draw(environment, comparison)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("mode", "change", "failure"),
    [
        ("off", {"status": "ok"}, "did not run out of memory"),
        ("on", {"status": "oom"}, "with LMS it ended with oom"),
        ("on", {"losses": [2.5, 2.26]}, "losses differ"),
        ("on", {"losses": []}, "losses differ"),
        ("on", {"weights_sha256": "abd"}, "weights differ"),
        ("on", {"weights_sha256": ""}, "weights differ"),
        ("on", {"peak_device_bytes": NEED // 4 + 4096}, "it needs 4.00 times the device, not 4"),
        ("unlimited", {"status": "oom"}, "on an unlimited device it ended with oom"),
    ],
)
def test_what_was_not_seen_is_said(
    compare: Any, mode: str, change: dict[str, object], failure: str
) -> None:
    failures = list(compare(**{mode: change}).failures(4))
    assert [text for text in failures if failure in text], failures


def test_an_incomplete_report(compare: Any) -> None:
    comparison = compare()
    row = json.loads(comparison.report.read_text())
    del row["losses"]
    comparison.report.write_text(json.dumps(row))
    with pytest.raises(LmsError, match="is not a complete report"):
        demonstration.Outcome.read(comparison.report)


def test_a_program_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: Environment
) -> None:
    program = tmp_path / "program.py"
    program.write_text("raise SystemExit(5)\n")
    monkeypatch.setattr(demonstration, "PROGRAM", program)
    monkeypatch.setenv("LMS_HOME", str(tmp_path / "home"))
    with pytest.raises(LmsError, match="training gpt with LMS unlimited ended with status 5"):
        demonstration.compare(environment, "gpt", 2, "cuda", 4)
