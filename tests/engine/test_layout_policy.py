"""The engine's layout and policy, compiled without PyTorch and tested in C++."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.device import TESTS

ENGINE = TESTS.parent / "patches" / "files" / "aten" / "src"
DETAIL = ENGINE / "ATen" / "cuda" / "detail"


def test_layout_and_policy(tmp_path: Path, subtests: pytest.Subtests) -> None:
    program = tmp_path / "layout_policy"
    sources = [
        Path(__file__).parent / "unit" / "layout_policy.cpp",
        DETAIL / "LMSLayout.cpp",
        DETAIL / "LMSPolicy.cpp",
    ]
    compiler = ["g++", "-std=c++17", "-O1", "-g"]
    warnings = ["-Wall", "-Wextra", "-Werror"]
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-D_GLIBCXX_ASSERTIONS"]
    subprocess.run(
        [*compiler, *warnings, *checks, f"-I{ENGINE}", *sources, "-o", program],
        check=True,
    )
    done = subprocess.run([program], capture_output=True, text=True)
    assert not done.stderr, done.stderr
    details: list[str] = []
    for line in done.stdout.splitlines():
        if line.startswith("  "):
            details.append(line)
            continue
        state, name = line.split()
        with subtests.test(name):
            assert state == "ok", "\n".join(details)
        details = []
    assert done.returncode >= 0 and "RangesCoverTheSegment" in done.stdout
