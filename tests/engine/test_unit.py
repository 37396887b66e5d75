"""The parts of the engine that include no PyTorch, tested in C++: see unit/."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import units


def test_unit(tmp_path: Path, subtests: pytest.Subtests) -> None:
    results = tmp_path / "results.json"
    done = subprocess.run(
        [units.program(), f"--gtest_output=json:{results}"],
        capture_output=True,
        text=True,
        env={"TMPDIR": str(tmp_path)},
    )
    assert results.exists(), done.stdout + done.stderr
    suites = json.loads(results.read_text())["testsuites"]
    assert len(suites) > 9
    for suite in suites:
        for test in suite["testsuite"]:
            with subtests.test(f"{suite['name']}.{test['name']}"):
                assert test["status"] == "RUN"
                assert "failures" not in test, test["failures"]
    assert (done.returncode, done.stderr) == (0, "")
