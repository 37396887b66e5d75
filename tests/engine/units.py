"""Compiles a program of unit/ with the parts of the engine that it tests, and runs it."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from pathlib import Path

import pytest
from support.device import TESTS

ENGINE = TESTS.parent / "patches" / "files" / "aten" / "src"
DETAIL = ENGINE / "ATen" / "cuda" / "detail"
UNIT = Path(__file__).parent / "unit"
COMPILER = (
    *("g++", "-std=c++17", "-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Werror", f"-I{ENGINE}"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-D_GLIBCXX_ASSERTIONS"),
)


def expect_passed(
    program: str, parts: list[str], folder: Path, subtests: pytest.Subtests, *arguments: str
) -> None:
    """Reports each test of the program.

    Args:
        program: its name in unit/.
        parts: of the engine, such as "Layout" for LMSCoreLayout.cpp. They include no PyTorch.
        folder: where to put the binary.
        subtests: where to report.
        arguments: of the program.
    """
    binary = folder / program
    objects = [Path(made_of(tuple(parts)).name, f"LMS{name}.o") for name in parts]
    subprocess.run([*COMPILER, UNIT / f"{program}.cpp", *objects, "-o", binary], check=True)
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


@functools.cache
def made_of(parts: tuple[str, ...]) -> tempfile.TemporaryDirectory[str]:
    """A folder with the object files of parts that several programs may share, until all end."""
    folder = tempfile.TemporaryDirectory()
    if parts:
        sources = [DETAIL / f"LMS{name}.cpp" for name in parts]
        subprocess.run([*COMPILER, "-c", *sources], cwd=folder.name, check=True)
    return folder
