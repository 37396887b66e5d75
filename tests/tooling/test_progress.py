"""Who waits sees for what, how far it is and for how long; a program that reads along does not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_torch import FakeRelease
from lms_cli import files, paths, progress
from lms_cli.wheel import compile
from support import terminal

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(paths.SCRIPT.parent)}
BAKING = """
import time
from lms_cli import progress
for loaf in progress.each("baking", ["rye", "wheat", "spelt"]):
    with progress.step(f"kneading {loaf}"):
        time.sleep(0.7)
    print(loaf)
"""
WITHOUT_TOOLS = "import sys; sys.modules['rich'] = None\n"
ENDS = [
    *(f"lms: kneading {loaf}: done in 0.7 s" for loaf in ("rye", "wheat", "spelt")),
    "lms: baking: done in 2.1 s",
]


def without_seconds(lines: list[str]) -> list[str]:
    return [re.sub(r"in \d+\.\d s", "in - s", line) for line in lines]


def test_a_terminal_shows_what_is_left() -> None:
    status, printed, shown = terminal.run([sys.executable, "-c", BAKING], ENVIRONMENT)
    assert status == 0
    assert printed == "rye\nwheat\nspelt\n"  # and none of it went to the terminal
    assert not re.search(r"^spelt", shown, re.MULTILINE)
    assert "baking ... 0 of 3, 0:00" in shown
    assert re.search(r"baking \.\.\. 1 of 3, 0:0[01], about 0:01 left", shown)
    assert re.search(r"baking \.\.\. 2 of 3, 0:0[12], about 0:00 left", shown)
    assert "kneading wheat ... 0:00" in shown
    ends = [line.strip() for line in shown.splitlines() if "done in" in line]
    assert without_seconds(ends) == without_seconds(ENDS)


@pytest.mark.parametrize("first", ["", WITHOUT_TOOLS])
def test_elsewhere_there_are_two_lines(first: str) -> None:
    command = [sys.executable, "-c", first + BAKING.replace("0.7", "0")]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    begin, *middle, end = without_seconds(done.stderr.splitlines())
    assert (begin, end) == ("lms: baking ...", "lms: baking: done in - s")
    assert middle[:2] == ["lms: kneading rye ...", "lms: kneading rye: done in - s"]
    assert len(middle) == 6


def test_a_terminal_without_tools_has_lines_too() -> None:
    """The first command of all, which installs them."""
    command = [sys.executable, "-c", WITHOUT_TOOLS + BAKING.replace("0.7", "0")]
    _, _, shown = terminal.run(command, ENVIRONMENT)
    assert shown.splitlines()[0] == "lms: baking ..."


def test_what_is_brief_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with progress.step("looking", brief=True):
        pass
    assert capfd.readouterr().err == ""


def test_what_is_not_so_brief_is(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SOON", 0.05)
    with progress.step("looking", brief=True):
        time.sleep(0.3)
    assert without_seconds(capfd.readouterr().err.splitlines()) == [
        "lms: looking ...",
        "lms: looking: done in - s",
    ]


def test_what_fails_is_not_done(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="burnt"), progress.step("baking", 2):
        raise ValueError("burnt")
    for _ in progress.each("icing", [1, 2]):
        break
    assert capfd.readouterr().err.splitlines() == ["lms: baking ...", "lms: icing ..."]


@pytest.mark.parametrize(
    ("done", "then", "now", "seconds"),
    [(0, 0.0, 9.0, None), (1, 10.0, 10.0, 30.0), (2, 20.0, 25.0, 15.0), (3, 30.0, 99.0, 0.0)],
)
def test_what_is_left_of_four(done: int, then: float, now: float, seconds: float | None) -> None:
    assert progress.left(done, 4, then, now) == seconds


def test_times_as_a_clock_shows_them() -> None:
    assert [progress.clock(seconds) for seconds in (0, 61.9, 3600)] == ["0:00", "1:01", "1:00:00"]


def test_waiting_for_another_run_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SOON", 0.05)
    target = tmp_path / "made"
    code = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX)"
    lock = target.with_name(f".{target.name}.lock")
    with subprocess.Popen(
        [sys.executable, "-uc", f"{code}; print(); time.sleep(0.5)", lock], stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with files.locked(target):
            pass
    begin, end = capfd.readouterr().err.splitlines()
    assert begin == f"lms: waiting for another lms to be done with {target} ..."
    assert "done in" in end


def test_what_ninja_counts() -> None:
    told: list[tuple[int | None, int | None]] = []
    code = "print('[1/3] cc a.o'); print('warning'); print('[2/3] ld a'); raise SystemExit(5)"

    def advance(done: int | None = None, total: int | None = None) -> None:
        told.append((done, total))

    status, said = compile.run_counted([sys.executable, "-c", code], None, advance)
    assert (status, told) == (5, [(1, 3), (2, 3)])
    assert said == "[1/3] cc a.o\nwarning\n[2/3] ld a\n"


def verb(fake: FakeRelease, *words: object) -> tuple[str, str]:
    """The standard output of a verb that works, and what the terminal got."""
    command = [sys.executable, paths.SCRIPT, *words]
    status, printed, shown = terminal.run(command, fake.environment())
    assert status == 0, shown
    assert "Traceback" not in shown
    return printed, shown


def test_verbs(fake: FakeRelease, tmp_path: Path) -> None:
    """What each shows on a terminal while it works; its result is on standard output alone."""
    printed, shown = verb(fake, "build", "9.9.9", "--out", fake.out)
    wheel = Path(printed.strip())
    assert wheel.is_file()
    for doing in ("compiling libtorch_lms.so", f"writing {wheel.name}"):
        assert re.search(rf"{re.escape(doing)}.* \.\.\. 0:0\d", shown), doing

    printed, shown = verb(fake, "index", tmp_path / "index", "--add", wheel)
    assert printed.splitlines() == [str(tmp_path / "index" / "simple")]
    assert "reading 1 wheel(s) ... 0 of 1" in shown

    printed, shown = verb(fake, "status")
    assert "9.9.9" in printed
    assert shown == ""  # it took no time
