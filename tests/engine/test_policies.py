"""The engine's layout and policies, compiled without PyTorch and tested in C++."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.device import TESTS

ENGINE = TESTS.parent / "patches" / "files" / "aten" / "src"
DETAIL = ENGINE / "ATen" / "cuda" / "detail"
UNIT = Path(__file__).parent / "unit"
# Everything that a policy is made of; it includes nothing of PyTorch.
SOURCES = [
    *("Layout", "Runs", "Space", "Clearing"),
    *("Policy", "History", "Plan", "PlannedPolicy"),
]


@pytest.mark.parametrize("program", ["layout_policy", "planned_policy", "space"])
def test_unit(program: str, tmp_path: Path, subtests: pytest.Subtests) -> None:
    binary = tmp_path / program
    sources = [UNIT / f"{program}.cpp", *(DETAIL / f"LMS{name}.cpp" for name in SOURCES)]
    compiler = ["g++", "-std=c++17", "-O1", "-g"]
    warnings = ["-Wall", "-Wextra", "-Werror"]
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-D_GLIBCXX_ASSERTIONS"]
    subprocess.run(
        [*compiler, *warnings, *checks, f"-I{ENGINE}", *sources, "-o", binary],
        check=True,
    )
    done = subprocess.run([binary], capture_output=True, text=True)
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
    assert done.returncode >= 0 and done.stdout.count("\n") >= 6
