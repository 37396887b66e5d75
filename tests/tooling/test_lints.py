"""The linters, as tests: formatting and static checks of everything that is written here."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import fake_torch
import pytest
from lms_cli import download, paths, releases
from lms_cli.series import series
from lms_cli.trace import replaying
from lms_cli.wheel import compile
from lms_cli.wheel.wheelfile import Wheel

CXX_SUFFIXES = (".cpp", ".h", ".hpp", ".cuh", ".cu")
CXX_FOLDERS = ("build", "patches/files", "tests")
FILES = paths.ROOT / "patches" / "files"
ENGINE = FILES / "aten" / "src" / "ATen" / "cuda" / "detail"
SOURCES = sorted(path.name for path in ENGINE.glob("*.cpp"))


@pytest.fixture
def linters() -> Path:
    """Folder of the pinned linters."""
    if folder := os.environ.get("LMS_LINTERS"):
        return Path(folder)
    pytest.skip("`./scripts/lms test` installs the linters and says where they are")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=paths.ROOT, capture_output=True, text=True)


def check(*command: str | Path) -> None:
    result = run(*command)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"


def tracked(*suffixes: str) -> list[str]:
    """Files of the repository, the not yet committed ones too."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True, check=True)
    names = listed.stdout.splitlines()
    return [name for name in names if name.endswith(suffixes) and (paths.ROOT / name).is_file()]


def is_shell_script(name: str) -> bool:
    path = paths.ROOT / name
    return path.is_file() and path.read_bytes().startswith((b"#!/usr/bin/env bash", b"#!/bin/sh"))


def test_ruff(linters: Path) -> None:
    check(linters / "ruff", "check", ".", "scripts/lms")


def test_ruff_format(linters: Path) -> None:
    check(linters / "ruff", "format", "--check", ".", "scripts/lms")


def test_mypy(linters: Path) -> None:
    check(linters / "mypy", "--python-executable", fake_torch.tools_folder() / "bin" / "python")


def test_clang_format(linters: Path) -> None:
    sources = [name for name in tracked(*CXX_SUFFIXES) if name.startswith(CXX_FOLDERS)]
    if not sources:
        pytest.skip("there is no C++ here")
    check(linters / "clang-format", "--dry-run", "-Werror", *sources)


@pytest.fixture(scope="module")
def tree() -> Path:
    """Where the library of the default release is compiled, up to date."""
    release = releases.default(paths.PATCHES)
    loaded = series.load(release)
    with Wheel(download.fetch_texts(release.wheel_for(releases.running_python()))) as official:
        applied = series.apply(loaded, official.text)
        compile.library(release, loaded, applied, official, cached=False)
    return compile.official_headers(release).parents[2]


# Sources that clang-tidy sees as one, which reads PyTorch's headers once for all of them. Its
# analyzer looks at functions of the main file only, so they are copied into one.
TOGETHER = 14
GROUPS = [SOURCES[begin : begin + TOGETHER] for begin in range(0, len(SOURCES), TOGETHER)]


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: f"{names[0]}-{names[-1]}")
def test_clang_tidy(linters: Path, tree: Path, tmp_path: Path, names: list[str]) -> None:
    """As they are compiled for the default release, with the same flags."""
    listed = json.loads((tree / "cmake" / "compile_commands.json").read_text())
    unit = next(entry for entry in listed if "/Unity/" in entry["file"])
    group = tmp_path / "group.cpp"
    texts = {name: (ENGINE / name).read_text() for name in names}
    group.write_text("".join(texts.values()))
    entry = {"file": str(group), "command": unit["command"].replace(unit["file"], str(group))}
    (tmp_path / "compile_commands.json").write_text(json.dumps([unit | entry]))
    config = f"--config-file={paths.ROOT / '.clang-tidy'}"
    done = run(linters / "clang-tidy", "--quiet", "-p", tmp_path, config, group)
    places = [f"{name}:{i + 1}" for name in names for i in range(texts[name].count("\n"))]
    told = re.sub(rf"{group}:(\d+)", lambda found: places[int(found[1]) - 1], done.stdout)
    assert done.returncode == 0, told + done.stderr


@pytest.mark.parametrize("name", sorted(path.name for path in replaying.SOURCES.glob("*.cpp")))
def test_clang_tidy_of_the_replay(linters: Path, name: str) -> None:
    replaying.program()
    database = replaying.tree() / "cmake"
    check(linters / "clang-tidy", "--quiet", "-p", database, replaying.SOURCES / name)


def test_shell_scripts_parse() -> None:
    scripts = [name for name in tracked("") if is_shell_script(name)]
    assert ".ci/run" in scripts
    for script in scripts:
        check("bash", "-n", script)
