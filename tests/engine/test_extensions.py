"""C++ extensions that take addresses themselves, built against either wheel's headers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import checked
import headers
import pytest
from support.device import Device

SOURCE = Path(__file__).with_name("extensions") / "addresses.cpp"


@pytest.mark.parametrize("level", ["-O2", "-O0"])
@pytest.mark.parametrize("built_against", ["lms", "stock"])
def test_extension(
    device: Device, subtests: pytest.Subtests, tmp_path: Path, built_against: str, level: str
) -> None:
    stock = built_against == "stock"
    includes = headers.of_the_official_wheel() if stock else headers.of_this_wheel()
    library = tmp_path / "addresses.so"
    options = ["-std=c++17", level, "-shared", "-fPIC", "-Wall", "-Wextra"]
    subprocess.run(
        [
            "g++", *options, f"-DLIBRARY=addresses_{built_against}",
            *[f"-isystem{path}" for path in includes], SOURCE, "-o", library, *headers.linked(),
        ],
        check=True,
    )  # fmt: skip
    results = checked.run(device, "extension", built_against, library, capacity="256M")
    checked.expect_passed(results, subtests)
