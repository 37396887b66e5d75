"""The parts of the engine that include no PyTorch, and their tests in C++ (unit/)."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

from lms_cli import files, paths
from support import archives
from support.device import TESTS

UNIT = TESTS / "engine" / "unit"
# GoogleTest 1.12, from Debian's source package.
URL = "https://deb.debian.org/debian/pool/main/g/googletest/googletest_1.12.1.orig.tar.gz"
SHA256 = "81964fe578e9bd7c94dfdb09c8e4d6e6759e19967e397dbea48d1c10e45d0df2"


@cache
def program() -> Path:
    """The compiled tests; compiles what has changed since they last were."""
    tree = paths.home().resolve() / "unit"
    if (tree / "CMakeCache.txt").exists() and str(UNIT) not in (
        tree / "CMakeCache.txt"
    ).read_text():
        shutil.rmtree(tree)  # CMake keeps to its source folder
    settings = {
        "LMS_SOURCE_DIR": TESTS.parent / "patches" / "files",
        "LMS_GOOGLETEST": archives.unpacked(archives.fetch(URL, SHA256), "googletest"),
    }
    with files.locked(tree):
        defined = [f"-D{name}={value}" for name, value in settings.items()]
        for command in (
            ["cmake", "-S", UNIT, "-B", tree, "-G", "Ninja", *defined],
            ["cmake", "--build", tree],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
    return tree / "lms-unit"
