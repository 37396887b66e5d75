"""Compiles a program of unit/ with the parts of the engine that it tests, and runs it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.device import TESTS

ENGINE = TESTS.parent / "patches" / "files" / "aten" / "src"
DETAIL = ENGINE / "ATen" / "cuda" / "detail"
UNIT = Path(__file__).parent / "unit"


def expect_passed(
    program: str, parts: list[str], folder: Path, subtests: pytest.Subtests, *arguments: str
) -> None:
    """Reports each test of the program.

    Args:
        program: its name in unit/.
        parts: of the engine, such as "Layout" for LMSLayout.cpp. They include no PyTorch.
        folder: where to put the binary.
        subtests: where to report.
        arguments: of the program.
    """
    binary = folder / program
    sources = [UNIT / f"{program}.cpp", *(DETAIL / f"LMS{name}.cpp" for name in parts)]
    compiler = ["g++", "-std=c++17", "-O1", "-g", "-pthread"]
    warnings = ["-Wall", "-Wextra", "-Werror"]
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-D_GLIBCXX_ASSERTIONS"]
    subprocess.run(
        [*compiler, *warnings, *checks, f"-I{ENGINE}", *sources, "-o", binary],
        check=True,
    )
    done = subprocess.run([binary, *arguments], capture_output=True, text=True)
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
