"""The parts of the engine that include no PyTorch, and their tests in C++ (unit/)."""

from __future__ import annotations

import hashlib
from pathlib import Path

from lms_cli import files, paths
from lms_cli.wheel import compile, toolchain
from support import archives
from support.device import TESTS

UNIT = TESTS / "engine" / "unit"
# GoogleTest 1.12, from Debian's source package.
URL = "https://deb.debian.org/debian/pool/main/g/googletest/googletest_1.12.1.orig.tar.gz"
SHA256 = "81964fe578e9bd7c94dfdb09c8e4d6e6759e19967e397dbea48d1c10e45d0df2"


def program() -> Path:
    """The compiled tests; compiles what has changed since they last were."""
    # A checkout has its own folder, since CMake keeps to its source folder.
    tree = paths.home().resolve() / f"unit-{hashlib.sha256(str(UNIT).encode()).hexdigest()[:12]}"
    settings = {
        "CMAKE_CXX_COMPILER": str(toolchain.find_compiler()),
        "LMS_SOURCE_DIR": str(paths.PATCHES / "files"),
        "LMS_GOOGLETEST": str(archives.unpacked(archives.fetch(URL, SHA256), "googletest")),
    }
    with files.locked(tree):
        return compile.run_cmake(UNIT, tree, "lms-unit", "lms-unit", settings)
