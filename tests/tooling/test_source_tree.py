"""The exported series on a real source tree.

What CMake generates is taken from the official wheel's headers.
"""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lms_cli import download, paths, releases
from lms_cli.series import export, git, series
from lms_cli.wheel import compile
from support import source_tree

RELEASE = releases.find(source_tree.VERSION, paths.PATCHES)
METHODS = "aten/src/ATen/templates/TensorMethods.cpp"  # defines what ours of TensorBase.h declare
# As build/CMakeLists.txt compiles them: most of the time goes to reading PyTorch's headers.
UNITS = {"first.cpp": "LMS[A-D]", "second.cpp": "(?!LMS[A-D])"}
IDENTITY = ("-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "gc.auto=0")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree with the series applied by `git am`."""
    folder = tmp_path_factory.mktemp("source")
    source = source_tree.unpack(folder)
    git.run("init", "--quiet", folder=source)
    git.run(*IDENTITY, "add", "--all", "aten", "c10", "torch/cuda", folder=source)
    git.run(*IDENTITY, "commit", "--quiet", "--message", "Debian's", folder=source)
    assert blobs(source) == {path: it.before for path, it in record().changed.items()}
    exported = folder / "export"
    export.write(RELEASE, exported)
    names = (exported / "series").read_text().split()
    git.run(*IDENTITY, "am", "--quiet", *(exported / name for name in names), folder=source)
    return source


def record() -> export.Record:
    return export.read_record(RELEASE)


def blobs(tree: Path) -> dict[str, str]:
    """Git's hashes of the files that the series changes, as the tree has them."""
    return {
        path: git.run("rev-parse", f"HEAD:{path}", folder=tree).strip() for path in record().changed
    }


def test_every_touched_file_has_the_recorded_hash(tree: Path) -> None:
    assert blobs(tree) == {path: it.after for path, it in record().changed.items()}


def test_upstreams_cmake_finds_the_new_files(tree: Path, tmp_path: Path) -> None:
    folder = tree / "aten" / "src" / "ATen"
    lists = (folder / "CMakeLists.txt").read_text()
    (sources,) = re.findall(r"^file\(GLOB cuda_cpp .*\)$", lists, re.MULTILINE)
    script = tmp_path / "globs.cmake"
    script.write_text(
        f'{sources}\nforeach(name ${{cuda_cpp}})\n  message("${{name}}")\nendforeach()'
    )
    cmake = Path(sys.executable).with_name("cmake")
    found = subprocess.run([cmake, "-P", script], cwd=folder, capture_output=True, text=True)
    names = {Path(line).relative_to(tree).as_posix() for line in found.stderr.splitlines()}
    assert set(ours()) <= names
    assert "aten/src/ATen/cuda/CUDABlas.cpp" in names  # and upstream's own


def ours() -> list[str]:
    return [name for name in series.load(RELEASE).new_files if name.endswith(".cpp")]


def test_new_files_compile_in_the_tree(tree: Path, tmp_path: Path) -> None:
    """And upstream's definitions of the accessors that a patch gives bodies."""
    methods = tree / "aten" / "src" / "ATen" / "TensorMethods.cpp"
    methods.write_text(re.sub(r"\$\{.*?\}", "", (tree / METHODS).read_text()))
    units = [methods]
    for unit, pattern in UNITS.items():
        names = [tree / name for name in ours() if re.match(pattern, Path(name).name)]
        units.append(tmp_path / unit)
        units[-1].write_text("".join(f'#include "{name}"\n' for name in names))
    cuda = [download.fetch_locked(RELEASE.lock, package) for package in RELEASE.cuda_headers]
    folders = [tree, tree / "aten" / "src", tree / "torch" / "csrc" / "api" / "include"]
    generated = compile.official_headers(RELEASE)
    system = [generated, generated / "torch" / "csrc" / "api" / "include"]
    system += [folder for path in cuda for folder in compile.unpack_headers_of(path)]
    command = ["c++", f"-std=c++{RELEASE.cxx_standard}", "-fPIC", "-O0", "-c", "-o", "/dev/null"]
    command += ["-D_GLIBCXX_USE_CXX11_ABI=0", "-DTORCH_CUDA_BUILD_MAIN_LIB", "-DUSE_CUDA"]
    command += [f"-I{folder}" for folder in folders]
    command += [word for folder in system for word in ("-isystem", str(folder))]

    def compiled(unit: Path) -> str:
        done = subprocess.run([*command, str(unit)], capture_output=True, text=True)
        return "" if done.returncode == 0 else f"{unit}: {done.stderr[:2000]}"

    with ThreadPoolExecutor(2) as pool:
        failures = [message for message in pool.map(compiled, units) if message]
    assert failures == []
