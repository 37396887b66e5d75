"""C++ extensions that take addresses themselves, built against this wheel's headers or upstream's.

Stock headers are found in the folder that LMS_STOCK_INCLUDE names: torch/include of the official
wheel. In an environment whose engine was put beside stock headers (development), LMS_INCLUDE names
folders, separated by colons, that come before them.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import checked
import pytest
from support.device import Device

SOURCE = Path(__file__).with_name("extensions") / "addresses.cpp"


def build(out: Path, namespace: str, includes: list[Path], level: str) -> Path:
    torch = pytest.importorskip("torch")
    packages = Path(torch.__file__).parent.parent
    root = Path(torch.__file__).parent
    cuda = next(packages.glob("nvidia/cu1[0-9]")) if list(packages.glob("nvidia/cu1[0-9]")) else None
    if cuda is None or not (cuda / "include" / "cuda_runtime_api.h").is_file():
        pytest.skip("the CUDA headers are not installed beside torch")
    paths = [*includes, cuda / "include"]
    subprocess.run(
        [
            "g++", "-std=c++17", level, "-shared", "-fPIC", "-Wall", "-Wextra",
            f"-DLIBRARY={namespace}",
            *[f"-isystem{path}" for path in paths],
            SOURCE, "-o", out,
            f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch",
            f"-L{cuda / 'lib'}", *[f"-l:{p.name}" for p in (cuda / "lib").glob("libcudart.so.*")],
        ],
        check=True,
    )  # fmt: skip
    return out


def wheels_headers() -> list[Path]:
    torch = pytest.importorskip("torch")
    include = Path(torch.__file__).parent / "include"
    first = [Path(path) for path in os.environ.get("LMS_INCLUDE", "").split(":") if path]
    if not any((path / "c10/core/LargeModelSupport.h").is_file() for path in [*first, include]):
        pytest.skip("this torch has no LMS headers, and LMS_INCLUDE names none")
    return [*first, include]


def stock_headers() -> list[Path]:
    stock = os.environ.get("LMS_STOCK_INCLUDE")
    if not stock:
        pytest.skip("LMS_STOCK_INCLUDE does not name torch/include of the official wheel")
    return [Path(stock)]


@pytest.mark.parametrize("level", ["-O2", "-O0"])
@pytest.mark.parametrize("headers", ["lms", "stock"])
def test_extension(
    device: Device, subtests: pytest.Subtests, tmp_path: Path, headers: str, level: str
) -> None:
    includes = wheels_headers() if headers == "lms" else stock_headers()
    library = build(tmp_path / "addresses.so", f"addresses_{headers}", includes, level)
    results = checked.run(device, "extension", headers, library, capacity="256M")
    checked.expect_passed(results, subtests)
