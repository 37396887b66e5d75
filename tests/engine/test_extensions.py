"""C++ extensions that take addresses, built against either wheel's headers."""

from __future__ import annotations

from pathlib import Path

import checked
import headers
import pytest
from support.device import Device

FOLDER = Path(__file__).with_name("extensions")
SECTION = "Compilers and custom operators"
EXTENSION = "C++ extensions that take addresses outside of operators"
BUILT_AGAINST = [
    pytest.param(
        "lms",
        marks=pytest.mark.compatibility(
            SECTION, f"{EXTENSION}, with the LMS wheel's headers", "works"
        ),
    ),
    pytest.param(
        "stock",
        marks=pytest.mark.compatibility(
            SECTION, f"{EXTENSION}, with upstream's headers", "clear error; works with a pin"
        ),
    ),
]


@pytest.mark.parametrize("level", ["-O2", "-O0"])
@pytest.mark.parametrize("built_against", BUILT_AGAINST)
def test_extension(
    device: Device, subtests: pytest.Subtests, tmp_path: Path, built_against: str, level: str
) -> None:
    stock = built_against == "stock"
    includes = headers.of_the_official_wheel() if stock else headers.of_this_wheel()
    library = tmp_path / "addresses.so"
    headers.compile_extension(
        FOLDER / "addresses.cpp", library, includes, level, f"-DLIBRARY=addresses_{built_against}"
    )
    results = checked.run(device, "extension", built_against, library, capacity="256M")
    checked.expect_passed(results, subtests)


@pytest.mark.compatibility(SECTION, "C++ operators on sparse and nested tensors", "works")
def test_other_layouts(device: Device, subtests: pytest.Subtests, tmp_path: Path) -> None:
    """With upstream's headers, as PyTorch's own."""
    library = tmp_path / "layouts.so"
    includes = headers.of_the_official_wheel()
    headers.compile_extension(FOLDER / "layouts.cpp", library, includes, "-O1")
    results = checked.run(device, "layouts", library, capacity="512M")
    checked.expect_passed(results, subtests)
