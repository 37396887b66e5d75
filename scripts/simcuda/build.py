"""Builds the simulated CUDA device for the torch of one Python environment.

    python build.py --out DIR [--torch-python PYTHON]

writes DIR/lib/libsimcuda.so (the CUDA runtime), libsimops.so (the operators), libsimnccl.so and
libsimnvml.so.
Needs g++ 11 or newer and, in that environment, torch with its nvidia-* packages and the
nvidia-cuda-crt package (headers that CUDA's runtime package leaves out). Uses the standard
library only, so that any Python can run it. Nothing is compiled twice.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "src"

# Headers of a torch that differ from the official wheel's of the same version, if it has them.
CHANGED_HEADERS = (
    "c10/util/LargeModelSupport.h",
    "c10/core/StorageImpl.h",
    "ATen/core/LargeModelSupport.h",
    "ATen/core/TensorBase.h",
)

# Asked of the target's interpreter; importing torch would take a second and is not needed.
PROBE = """
import importlib.util, json, pathlib
spec = importlib.util.find_spec("torch")
if spec is None:
    print(json.dumps(None))
else:
    torch = pathlib.Path(spec.origin).parent
    version = {}
    exec((torch / "version.py").read_text(), version)
    print(json.dumps([str(torch), version["__version__"], version["cuda"]]))
"""


class BuildError(Exception):
    """The simulated device cannot be built; the message says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Target:
    """The torch to build for."""

    torch: Path
    version: str  # "2.11.0+cu130"
    cuda: str  # "13.0"
    more: tuple[Path, ...] = ()  # folders of headers that are not installed beside torch

    @property
    def includes(self) -> list[Path]:
        """Folders of headers: torch's, and CUDA's of the nvidia-* packages beside it."""
        nvidia = sorted((self.torch.parent / "nvidia").glob("*/include"))
        cccl = [path / "cccl" for path in nvidia if (path / "cccl").is_dir()]
        torch = self.torch / "include"
        return [torch, torch / "torch/csrc/api/include", *nvidia, *cccl, *self.more]


def find_target(python: str, more: tuple[Path, ...] = ()) -> Target:
    """The torch that `python` imports, with everything needed to compile against it."""
    try:
        done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
    except (OSError, subprocess.CalledProcessError, json.JSONDecodeError) as error:
        raise BuildError(f"cannot run the interpreter {python}: {error}") from error
    if found is None:
        raise BuildError(f"no torch in the environment of {python}: install it there")
    target = Target(Path(found[0]), found[1], found[2] or "", more)
    if not target.cuda:
        raise BuildError(f"torch {target.version} is a build without CUDA: install one with it")
    for header, package in (
        ("cuda_runtime_api.h", "nvidia-cuda-runtime"),
        ("crt/host_defines.h", "nvidia-cuda-crt"),
    ):
        if not any((path / header).is_file() for path in target.includes):
            if package == "nvidia-cuda-crt" and int(target.cuda.split(".")[0]) < 13:
                package = "nvidia-cuda-nvcc-cu12"
            raise BuildError(
                f"{header} is missing in the environment of {python}: "
                f"pip install '{package}=={target.cuda}.*' there"
            )
    return target


def find_compiler() -> str:
    """g++, or what CXX names."""
    name = os.environ.get("CXX", "g++")
    path = shutil.which(name)
    if path is None:
        raise BuildError(f"the compiler {name} is missing: install g++ or set CXX")
    return path


def old_abi(torch: Path) -> bool:
    """Whether the wheel was compiled with libstdc++'s old ABI (2.6 and older)."""
    return b"_ZN3c106detail14torchCheckFailEPKcS2_jRKSs" in (torch / "lib/libc10.so").read_bytes()


class Compiler:
    """Compiles and links with everything fixed but the files."""

    def __init__(self, target: Target, scratch: Path) -> None:
        self.scratch = scratch
        self.target = target
        abi = f"-D_GLIBCXX_USE_CXX11_ABI={0 if old_abi(target.torch) else 1}"
        extra = os.environ.get("SIMCUDA_CXXFLAGS", "").split()
        self.cxx = find_compiler()
        self.flags = ["-std=c++20", "-O1", "-g1", "-fPIC", "-pthread", "-fvisibility=hidden", abi]
        self.flags += ["-Wall", "-Wextra", *extra]
        for path in target.includes:
            self.flags += ["-isystem", str(path)]

    def fingerprint(self, folder: Path) -> str:
        """Of everything that the library of this folder depends on."""
        version = subprocess.run([self.cxx, "-dumpfullversion"], capture_output=True, check=True)
        digest = hashlib.sha256(version.stdout)
        site_packages = str(self.target.torch.parent)  # wherever the same torch is
        flags = [flag.replace(site_packages, "") for flag in self.flags]
        digest.update(repr((self.cxx, flags, self.target.version)).encode())
        changed = (self.target.torch / "include" / name for name in CHANGED_HEADERS)
        headers = filter(Path.is_file, changed)
        for path in (
            Path(__file__),
            *headers,
            *sorted(SOURCES.glob("*.h")),
            *sorted(folder.glob("*.*")),
        ):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()

    def run(self, *arguments: str) -> None:
        """Runs the compiler; its messages go to the error."""
        done = subprocess.run([self.cxx, *arguments], capture_output=True, text=True, check=False)
        if done.stderr:
            sys.stderr.write(done.stderr)
        if done.returncode != 0:
            raise BuildError(f"compiling failed: {self.cxx} {' '.join(arguments[-3:])}")

    def compile(self, source: Path) -> Path:
        """One source to one object."""
        made = self.scratch / f"{source.parent.name}-{source.stem}.o"
        self.run(*self.flags, "-c", str(source), "-o", str(made))
        return made

    def link(self, objects: list[Path], made: Path, *flags: str) -> None:
        """Objects to a shared library, which appears whole or not at all."""
        whole = made.with_suffix(".new")
        names = [str(path) for path in objects]
        self.run("-shared", "-pthread", *self.flags[:3], *names, "-o", str(whole), *flags)
        whole.replace(made)


@dataclasses.dataclass(frozen=True)
class Library:
    """One shared library, from the sources of one folder."""

    name: str
    folder: Path
    soname: str = ""  # "" has none
    libraries: tuple[str, ...] = ()  # of torch, to link with
    is_one: bool = False  # compiled as one: most of the time goes to torch's headers

    def units(self, scratch: Path) -> list[Path]:
        """What is compiled: the sources, or a file that includes them all."""
        sources = sorted(self.folder.glob("*.cpp"))
        if not self.is_one:
            return sources
        unit = scratch / f"{self.name}.cpp"
        unit.write_text("".join(f'#include "{source}"\n' for source in sources))
        return [unit]

    def link(self, compiler: Compiler, objects: list[Path], lib: Path) -> None:
        """Links what was compiled."""
        flags = [f"-Wl,-soname,{self.soname}"] if self.soname else []
        flags += [f"-L{compiler.target.torch / 'lib'}", *(f"-l{name}" for name in self.libraries)]
        compiler.link(objects, lib / f"{self.name}.so", *flags)
        if self.soname:  # Triton links what it compiles with the file of one of these names
            for name in (self.soname, self.soname.removesuffix(".1")):
                link = lib / name
                link.unlink(missing_ok=True)
                link.symlink_to(f"{self.name}.so")


TORCH = ("c10", "c10_cuda", "torch_cpu", "torch_cuda")
LIBRARIES = (
    Library("libsimops", SOURCES / "ops", libraries=TORCH, is_one=True),
    # The runtime answers to the driver's name too: libraries of torch ask for it.
    Library("libsimcuda", SOURCES / "runtime", soname="libcuda.so.1"),
    Library("libsimnvml", SOURCES / "nvml", soname="libnvidia-ml.so.1"),
    Library("libsimnccl", SOURCES / "nccl"),
)


@contextlib.contextmanager
def locked(out: Path) -> Iterator[None]:
    """One build in a folder at a time."""
    with (out / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(out: Path, python: str, more: tuple[Path, ...] = ()) -> bool:
    """Builds into `out` for the torch of `python`; False when nothing had to be done."""
    target = find_target(python, more)
    lib, scratch = out / "lib", out / "objects"
    compiler = Compiler(target, scratch)
    lib.mkdir(parents=True, exist_ok=True)
    with locked(out):
        stale: dict[Library, tuple[Path, str]] = {}
        for library in LIBRARIES:
            stamp = lib / f"{library.name}.fingerprint"
            fingerprint = compiler.fingerprint(library.folder)
            if not stamp.is_file() or stamp.read_text() != fingerprint:
                stamp.unlink(missing_ok=True)
                stale[library] = stamp, fingerprint
        if not stale:
            return False
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = {
                library: [pool.submit(compiler.compile, unit) for unit in library.units(scratch)]
                for library in stale
            }
        for library, (stamp, fingerprint) in stale.items():
            library.link(compiler, [made.result() for made in objects[library]], lib)
            stamp.write_text(fingerprint)
        shutil.rmtree(scratch)
    return True


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the result")
    parser.add_argument("--torch-python", default=sys.executable, help="whose torch to build for")
    parser.add_argument(
        "--include", type=Path, action="append", default=[], help="folder of CUDA headers"
    )
    arguments = parser.parse_args()
    try:
        built = build(arguments.out.resolve(), arguments.torch_python, tuple(arguments.include))
    except (BuildError, OSError) as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.out.resolve()}: {'built' if built else 'up to date'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
