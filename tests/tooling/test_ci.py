"""Continuous integration runs what the README says, on everything that is supported."""

from __future__ import annotations

import json
import subprocess
import sys

from fake_torch import FakeRelease
from lms_cli import paths, releases


def test_the_matrix_has_every_official_wheel() -> None:
    command = [sys.executable, str(paths.ROOT / "ci" / "matrix.py")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = json.loads(result.stdout)["include"]
    expected = {
        (release.version, releases.dotted(official.python), official.machine)
        for release in releases.load(paths.PATCHES).values()
        for official in release.official
    }
    assert {(row["release"], row["python"], row["machine"]) for row in rows} == expected
    assert len(rows) == len(expected)


def test_the_matrix_follows_releases_yaml(fake: FakeRelease) -> None:
    command = [sys.executable, str(paths.ROOT / "ci" / "matrix.py")]
    result = subprocess.run(command, capture_output=True, text=True, env=fake.environment())
    (row,) = json.loads(result.stdout)["include"]
    assert row["command"].startswith("./scripts/lms build 9.9.9 --python 3.")


def test_ci_runs_the_test_command() -> None:
    lines = (paths.ROOT / ".ci" / "run").read_text().splitlines()
    commands = [line.removeprefix("exec ") for line in lines if line and not line.startswith("#")]
    assert commands[-1] == "./scripts/lms test"
