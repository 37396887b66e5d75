"""Libraries that run on old systems, and platform tags that say on which."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import fake_torch
import pytest
from fake_torch import FakeRelease
from lms_cli import download, paths
from lms_cli.errors import CompileError, LmsError
from lms_cli.releases import OfficialWheel
from lms_cli.wheel import compile, elf, platforms, toolchain
from lms_cli.wheel.elf import Needs
from lms_cli.wheel.toolchain import Compiler
from test_verify import failed_checks, members_of

GLIBC = tuple(map(int, (os.confstr("CS_GNU_LIBC_VERSION") or "glibc 0.0").split()[1].split(".")))
CHECK = Path(__file__).parent / "portable" / "check.cpp"
NEWER = """#include <filesystem>
bool newer();
bool newer() { return std::filesystem::exists(std::filesystem::path()); }
"""


def official(platform: str) -> OfficialWheel:
    return OfficialWheel(f"torch-9.9.9-cp312-cp312-{platform}.whl", "0" * 64, 1)


def needs(*versioned: str, machine: str = "x86_64") -> Needs:
    """What a library needs that asks for these."""
    symbols = dict(symbol.split("@") for symbol in versioned)
    versions = {"libc.so.6": frozenset(symbols.values())}
    return Needs(machine, (), "", frozenset(), versions, symbols)


@pytest.mark.parametrize(
    ("upstream", "ours"),
    [
        ("manylinux1_x86_64", "manylinux_2_28_x86_64"),
        ("manylinux2014_aarch64", "manylinux_2_28_aarch64"),
        ("manylinux_2_28_x86_64", "manylinux_2_28_x86_64"),
        ("manylinux_2_34_aarch64", "manylinux_2_34_aarch64"),
    ],
)
def test_the_promised_tag_is_that_of_the_newer_systems(upstream: str, ours: str) -> None:
    assert official(upstream).promised_platform == ours


@pytest.mark.parametrize(
    ("upstream", "needed", "tag", "too_new"),
    [
        ("manylinux1_x86_64", None, "manylinux_2_28_x86_64", []),
        ("manylinux1_x86_64", needs("a@GLIBC_2.14"), "manylinux_2_28_x86_64", []),
        (
            "manylinux_2_28_aarch64",
            needs("a@GLIBC_2.17", machine="aarch64"),
            "manylinux_2_28_aarch64",
            [],
        ),
        ("manylinux_2_28_x86_64", needs("a@GLIBCXX_3.4.24"), "manylinux_2_28_x86_64", []),
        (
            "manylinux_2_28_x86_64",
            needs("a@GLIBC_2.14", "b@GLIBC_2.33"),
            "manylinux_2_34_x86_64",
            ["b@GLIBC_2.33"],
        ),
        (
            "manylinux_2_28_aarch64",
            needs("a@GLIBCXX_3.4.30", "b@CXXABI_1.3.13", machine="aarch64"),
            "manylinux_2_35_aarch64",
            ["a@GLIBCXX_3.4.30", "b@CXXABI_1.3.13"],
        ),
        ("manylinux_2_28_x86_64", needs("a@GLIBC_9.9"), "linux_x86_64", ["a@GLIBC_9.9"]),
        ("manylinux_2_34_x86_64", needs("b@GLIBC_2.33"), "manylinux_2_34_x86_64", []),
    ],
)
def test_the_tag_that_a_library_deserves(
    upstream: str, needed: Needs | None, tag: str, too_new: list[str]
) -> None:
    wheel = official(upstream)
    assert platforms.deserved(wheel, needed) == tag
    if needed is not None:
        assert platforms.too_new(needed, wheel.promised_platform) == too_new
        assert platforms.too_new(needed, tag) == []


def test_a_locked_package_for_each_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are in the lock, in the index, and in the end in the cache."""
    index = tmp_path / "index"
    index.mkdir()
    hashes = []
    for machine in ("x86_64", "aarch64"):
        path = index / f"headers-1.0-py3-none-manylinux2014_{machine}.manylinux_2_17_{machine}.whl"
        pure = fake_torch.write_pure_wheel(tmp_path, "headers", "1.0", machine)
        shutil.move(pure, path)
        hashes.append(hashlib.sha256(path.read_bytes()).hexdigest())
    lock = tmp_path / "lock"
    lock.write_text(f"headers==1.0 {' '.join(f'--hash=sha256:{value}' for value in hashes)}\n")
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for _ in range(2):
        for machine in ("x86_64", "aarch64"):
            path = download.fetch_locked(lock, "headers", machine)
            assert path.name.endswith(f"{machine}.whl")
        shutil.rmtree(index, ignore_errors=True)  # the second time, from the cache


def pinned(machine: str) -> Compiler:
    """The pinned compiler, if it was downloaded before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        try:
            return toolchain.pinned(machine)
        except LmsError:
            pytest.skip(f"`./scripts/lms build --machine {machine}` downloads the compiler")


def built(compiler: Compiler, folder: Path, source: str, **settings: str) -> Path:
    """A library of one source, made as the engine is."""
    path = folder / "sources" / "aten" / "src" / "ATen" / "cuda" / "source.cpp"
    path.parent.mkdir(parents=True)
    path.write_text(source)
    settings = {
        **settings,
        "CMAKE_CXX_COMPILER": str(compiler.path),
        "LMS_SOURCE_DIR": str(folder / "sources"),
        "LMS_CUDA_MAJOR": "13",
        "LMS_PORTABLE": str(int(compiler.portable)),
    }
    return compile.run_cmake(
        paths.BUILD, folder, "torch_lms", compile.LIBRARY, settings, compiler.environment
    )


def run_check(library: Path) -> subprocess.CompletedProcess[str]:
    code = f"import ctypes; ctypes.CDLL({str(library)!r}, ctypes.RTLD_GLOBAL).check()"
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LD_LIBRARY_PATH": str(library.parent / "stand-ins")},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("machine", "cxx11_abi", "standard"),
    [("x86_64", 1, 17), ("x86_64", 0, 17), ("x86_64", 1, 20), ("aarch64", 1, 17)],
)
def test_a_library_for_old_systems(
    tmp_path: Path, machine: str, cxx11_abi: int, standard: int
) -> None:
    settings = {"LMS_CXX11_ABI": str(cxx11_abi), "LMS_CXX_STANDARD": str(standard)}
    library = built(pinned(machine), tmp_path, CHECK.read_text(), **settings)
    wheel = official(f"manylinux_2_28_{machine}")
    compile.check_portable(library, wheel)
    with library.open("rb") as stream:
        needed = elf.needs(stream)
        inline = {f"_ZNSt15__exception_ptr13exception_ptr{name}Ev" for name in ("D1", "D2")}
        # An old libstdc++ would call it: without end, for it calls that one.
        assert elf.provided(stream, frozenset(inline)) == set()
    assert "libpthread.so.0" in needed.libraries
    assert ("_ZNSs" in " ".join(needed.versioned)) is (cxx11_abi == 0)
    assert platforms.deserved(wheel, needed) == wheel.promised_platform
    if machine == "x86_64":
        result = run_check(library)
        assert (result.returncode, result.stdout) == (0, "text 42 0.5\n"), result.stderr


def test_a_library_that_needs_newer_systems_is_refused(tmp_path: Path) -> None:
    library = built(pinned("x86_64"), tmp_path, NEWER)
    message = r"may lack: \w+filesystem\w+@GLIBCXX_3\.4\.26.*\n.*build/portable\.cpp"
    with pytest.raises(CompileError, match=message):
        compile.check_portable(library, official("manylinux_2_28_x86_64"))


def test_the_same_library_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From another folder, and by a user with an own compiler."""
    compiler = pinned("x86_64")
    first = built(compiler, tmp_path / "first", NEWER)
    monkeypatch.setenv("CXXFLAGS", "-O0")
    monkeypatch.setenv("LDFLAGS", "-Wl,--build-id")
    monkeypatch.setenv("CPATH", "/usr/include")
    second = built(compiler, tmp_path / "a" / "longer" / "name", NEWER)
    assert first.read_bytes() == second.read_bytes()


def test_without_the_pinned_compiler(fake: FakeRelease) -> None:
    """The index does not have it."""
    result = fake.build(CXX="")
    assert result.returncode == 0, result.stderr
    assert "could not download ppbt==" in result.stderr
    assert "The system's compiler is used instead" in result.stderr


def test_a_pinned_compiler_that_does_not_run(tmp_path: Path) -> None:
    program = tmp_path / "g++"
    program.write_text("#!/bin/sh\n")  # not executable, as on a disk without programs
    with pytest.raises(CompileError, match=r"does not run here: .*Permission denied"):
        toolchain.running(program, "identity")


def test_for_another_machine_there_is_only_the_pinned_compiler(fake: FakeRelease) -> None:
    result = fake.python("from lms_cli.wheel import toolchain; toolchain.find('aarch64')", CXX="")
    assert re.search(r"NetworkError: could not download ppbt==", result.stderr), result.stderr


def test_no_wheel_for_that_machine(fake: FakeRelease) -> None:
    result = fake.lms("build", fake_torch.VERSION, "--machine", "aarch64")
    assert result.returncode == 2
    assert "has no official wheel" in result.stderr
    assert "on aarch64" in result.stderr


def test_the_abi_of_the_release(fake: FakeRelease) -> None:
    source = fake.patches / "files" / fake_torch.NEW_SOURCE
    visible = '__attribute__((visibility("default")))'
    source.write_text(
        f"{source.read_text()}\n#include <string>\n"
        f"{visible} int take(const std::string& text);\n"
        "int take(const std::string& text) { return text.empty(); }\n"
    )
    fake.pin(cxx11_abi=False)
    with zipfile.ZipFile(fake.built()) as wheel, wheel.open("torch/lib/libtorch_lms.so") as stream:
        assert elf.provided(stream, frozenset({"_Z4takeRKSs"})) == {"_Z4takeRKSs"}


@pytest.mark.skipif(GLIBC < (2, 33), reason="an old glibc makes no library for newer ones")
def test_a_library_for_newer_systems_is_tagged_so(fake: FakeRelease, tmp_path: Path) -> None:
    source = fake.patches / "files" / fake_torch.NEW_SOURCE
    text = source.read_text().replace("return upstream()", "struct stat s;\n  return fstat(0, &s)")
    source.write_text(f"#include <sys/stat.h>\n{text}")
    wheel = fake.built()
    tag = f"{fake_torch.PYTHON.rstrip('t')}-{fake_torch.PYTHON}-manylinux_2_34_x86_64"
    assert wheel.name.endswith(f"-{tag}.whl")
    members = members_of(wheel)
    name = next(name for name in members if name.endswith("/WHEEL"))
    assert f"Tag: {tag}\n" in members[name].decode()
    assert "is up to date" in fake.build().stderr

    result = fake.lms("verify", str(wheel))
    assert result.returncode == 0, result.stdout
    assert "NOT portable as manylinux_2_28_x86_64" in result.stdout

    claimed = tmp_path / fake_torch.LMS_NAME
    members[name] = members[name].replace(b"manylinux_2_34", b"manylinux_2_28")
    fake_torch.write_wheel(claimed, members)
    result = fake.lms("verify", str(claimed))
    assert (result.returncode, failed_checks(result.stdout)) == (8, {"system libraries"})
    assert "it needs fstat@GLIBC_2.33" in result.stdout


@pytest.mark.parametrize("platform", ["manylinux_2_28_aarch64", "manylinux_9_9_x86_64"])
def test_a_name_with_a_tag_that_cannot_be(
    pristine: FakeRelease, tmp_path: Path, platform: str
) -> None:
    name = fake_torch.LMS_NAME.replace(fake_torch.PLATFORM, platform)
    wheel = shutil.copy(pristine.out / fake_torch.LMS_NAME, tmp_path / name)
    result = pristine.lms("verify", str(wheel))
    assert result.returncode == 2, result.stderr
    assert f"{name} is not the name of an LMS wheel" in result.stderr
