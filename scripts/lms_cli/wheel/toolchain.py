"""The compiler of libtorch_lms.so.

A library asks for the glibc and libstdc++ of the system that it was compiled for. Pinned compilers
that come with old ones make it run wherever PyTorch's own libraries run, and make the same bytes on
every machine; `build/README.md` says more. Without them, the system's compiler does.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lms_cli import download, files, paths, progress, releases
from lms_cli.errors import CompileError, LmsError
from lms_cli.wheel.wheelfile import Wheel

LOCK = paths.LOCKS / "toolchain.lock"
GCC = "ppbt"  # for each machine a GCC 11 that runs there, with the glibc 2.17 it compiles for
CLANG = "ziglang"  # clang and lld, which compile for any machine
CLANG_OPTIONS = (
    "--driver-mode=g++",
    "--start-no-unused-arguments",
    "--target={target}",
    "--gcc-toolchain={gcc}",
    "--sysroot={gcc}/{target}/sysroot",
    "-resource-dir={clang}/lib",
    "--ld-path={folder}/ld.lld",
    "--end-no-unused-arguments",
)
UNPACKED = 300_000_000  # bytes: the larger of the two
# What a user sets for another compiler, and what would change the bytes that a pinned one makes.
FOREIGN = (
    "CFLAGS",
    "CPPFLAGS",
    "CXXFLAGS",
    "LDFLAGS",
    "CPATH",
    "CPLUS_INCLUDE_PATH",
    "C_INCLUDE_PATH",
    "COMPILER_PATH",
    "GCC_EXEC_PREFIX",
    "LIBRARY_PATH",
)


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler."""

    path: Path
    identity: str  # compilers with the same one make the same bytes
    portable: bool  # it is pinned, and compiles for systems as old as PyTorch's wheels run on

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables to run it with."""
        foreign = FOREIGN if self.portable else ()
        return {name: value for name, value in os.environ.items() if name not in foreign}


def find(machine: str) -> Compiler:
    """The compiler for x86_64 or aarch64: $CXX, else the pinned one, else the system's.

    Raises:
        CompileError: there is none.
        LmsError: the pinned one cannot be had, and the system's compiles for another machine.
    """
    if os.environ.get("CXX"):
        return of_system()
    try:
        return pinned(machine)
    except LmsError as error:
        if machine != releases.MACHINE:
            raise
        progress.note(
            f"{error}\n  The system's compiler is used instead: the wheel is for systems like "
            "this one and newer, and its name says so."
        )
        return of_system()


def of_system() -> Compiler:
    """The system's compiler.

    Raises:
        CompileError: there is none.
    """
    path = find_compiler()
    return Compiler(path, compiler_version(path), portable=False)


def find_compiler() -> Path:
    """The system's C++ compiler: $CXX, else c++ or g++.

    Raises:
        CompileError: there is none.
    """
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++"]
    for name in names:
        if found := shutil.which(name):
            return Path(found)
    raise CompileError(
        f"no C++ compiler: {' and '.join(names)} not found",
        "Install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++) or set CXX.",
    )


def compiler_version(compiler: Path) -> str:
    """What the compiler says of itself."""
    return subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout


def pinned(machine: str) -> Compiler:
    """The pinned compiler for x86_64 or aarch64, downloaded if need be.

    It is GCC where that runs, else clang with GCC's headers and libraries.

    Raises:
        LmsError: it cannot be had, or does not run here.
    """
    target = f"{machine}-linux-gnu"
    package = download.fetch_locked(LOCK, GCC, machine)
    gcc = _unpacked(package, _unpack_gcc) / target
    identity = f"{target} {package.parent.name}"
    if machine == releases.MACHINE:
        return running(gcc / "bin" / f"{target}-g++", identity)
    package = download.fetch_locked(LOCK, CLANG)
    clang = _unpacked(package, _unpack_clang) / "ziglang"
    identity += f" {package.parent.name} {CLANG_OPTIONS}"
    return running(_cross_compiler(target, gcc, clang), identity)


def running(path: Path, identity: str) -> Compiler:
    """A pinned compiler, once it has been seen to run.

    Raises:
        CompileError: it does not, which happens on disks that no program may run from.
    """
    try:
        subprocess.run([path, "--version"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CompileError(
            f"the pinned compiler does not run here: {error}",
            "Point XDG_CACHE_HOME (downloads) at a disk that programs may run from.",
        ) from error
    return Compiler(path, identity, portable=True)


def _cross_compiler(target: str, gcc: Path, clang: Path) -> Path:
    """A script that is clang with the options that make it compile for another machine."""
    folder = paths.home().resolve() / "toolchain" / target
    places = {"target": target, "gcc": gcc, "clang": clang, "folder": folder}
    options = [option.format(**places) for option in CLANG_OPTIONS]
    with files.locked(folder):
        _write_script(folder / "ld.lld", [f"{clang}/zig", "ld.lld"])
        return _write_script(folder / "c++", [f"{clang}/zig", "clang", *options])


def _write_script(path: Path, command: list[str]) -> Path:
    text = f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n'
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        files.write_text(path, text)
    path.chmod(0o755)
    return path


def _unpacked(package: Path, unpack: Callable[[Wheel, Path], None]) -> Path:
    """The folder beside a downloaded wheel with what is unpacked from it."""
    folder = package.parent / "unpacked"
    with files.locked(folder):
        if not folder.exists():
            files.require_space(package.parent, UNPACKED, f"unpacking {package.name}")
            with (
                progress.step(f"unpacking {package.name}"),
                files.folder_beside(folder) as unfinished,
                Wheel(package) as wheel,
            ):
                unpack(wheel, unfinished)
    return folder


def _unpack_gcc(wheel: Wheel, folder: Path) -> None:
    """The archive in the wheel."""
    archive = next(name for name in wheel.members if name.endswith(".tar.xz"))
    with wheel.zip.open(archive) as packed, tarfile.open(fileobj=packed, mode="r|xz") as tar:
        # Early patch releases of Python 3.10 and 3.11 do not have it.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(folder)


def _unpack_clang(wheel: Wheel, folder: Path) -> None:
    """The program, and the headers that belong to the compiler itself."""
    program = "ziglang/zig"
    headers = [name for name in wheel.members if name.startswith("ziglang/lib/include/")]
    wheel.zip.extractall(folder, [program, *headers])
    (folder / program).chmod(0o755)
