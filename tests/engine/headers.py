"""Compiling C++ of the tests against PyTorch's headers.

Stock headers are found in the folder that LMS_STOCK_INCLUDE names: torch/include of the official
wheel. In an environment whose engine was put beside stock headers (development), LMS_INCLUDE names
folders, separated by colons, that come before them.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


def torch_root() -> Path:
    torch = pytest.importorskip("torch")
    return Path(torch.__file__).parent


def cuda_root() -> Path:
    """The folder of the CUDA runtime's wheel, or of both its parts with CUDA 12."""
    for folder in sorted(torch_root().parent.glob("nvidia/*")):
        if (folder / "include" / "cuda_runtime_api.h").is_file():
            return folder
    pytest.skip("the CUDA headers are not installed beside torch")


def of_this_wheel() -> list[Path]:
    include = torch_root() / "include"
    first = [Path(path) for path in os.environ.get("LMS_INCLUDE", "").split(":") if path]
    if not any((path / "c10/util/LargeModelSupport.h").is_file() for path in [*first, include]):
        pytest.skip("this torch has no LMS headers, and LMS_INCLUDE names none")
    return [*first, include, include / "torch/csrc/api/include", cuda_root() / "include"]


def of_the_official_wheel() -> list[Path]:
    stock = os.environ.get("LMS_STOCK_INCLUDE")
    if not stock:
        pytest.skip("LMS_STOCK_INCLUDE does not name torch/include of the official wheel")
    return [Path(stock), cuda_root() / "include"]


def compile_extension(source: Path, library: Path, includes: list[Path], *options: str) -> None:
    """Compiles a source into a library that `torch.ops.load_library` loads."""
    common = ["-std=c++17", "-shared", "-fPIC", "-Wall", "-Wextra"]
    folders = [f"-isystem{path}" for path in includes]
    command = ["g++", *common, *options, *folders, str(source), "-o", str(library), *linked()]
    subprocess.run(command, check=True)


def linked() -> list[str]:
    """Linker options for the libraries that such code needs."""
    cuda = cuda_root() / "lib"
    runtime = next(cuda.glob("libcudart.so.*")).name
    libraries = [f"-l{name}" for name in ("c10", "c10_cuda", "torch_cpu", "torch_cuda")]
    return [f"-L{torch_root() / 'lib'}", *libraries, f"-L{cuda}", f"-l:{runtime}"]
