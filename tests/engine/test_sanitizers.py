"""The engine under sanitizers, while threads compute and LMS moves what they use.

The engine is compiled anew for them; all else is the installed wheel.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import checked
import headers
import pytest
from support.device import TESTS, Device

PROGRAM = checked.CHECKS / "races.py"
ENGINE = TESTS.parent / "patches" / "files"
SUPPRESSIONS = Path(__file__).with_name("tsan.supp")
THREADS, ROUNDS = "4", "20"
UNITS = ("[A-D]", "[E-Z]")  # first letters of the sources in each; see build/CMakeLists.txt
REPORTED = 66  # exit status: a sanitizer has reported something


@dataclass(frozen=True)
class Sanitized:
    """An engine compiled with sanitizers."""

    library: Path
    runtime: str  # what has to be loaded before all else

    def run(
        self, device: Device, mode: str, kernels: str, **options: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs PROGRAM with this engine.

        Args:
            device: where it runs.
            mode: "on" or "chaos".
            kernels: of simcuda.environment.
            options: environment variables that sanitizers read.
        """
        environment = device.environment(capacity="64M", kernels=kernels) | options
        environment["LD_PRELOAD"] = f"{self.runtime}:{environment.get('LD_PRELOAD', '')}"
        # Sanitizers cannot map their shadow memory where addresses are too random.
        straight = ["setarch", platform.machine(), "-R"]
        return subprocess.run(
            [*straight, sys.executable, PROGRAM, self.library, mode, THREADS, ROUNDS],
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
        )


def compile_engine(names: str, runtime: str, folder: Path) -> Sanitized:
    """Skips the test where the compiler has no runtime for the sanitizers or it cannot be used.

    Args:
        names: of sanitizers, as -fsanitize takes them.
        runtime: the file name of their runtime.
        folder: where the library goes.
    """
    located = subprocess.run(
        ["g++", f"-print-file-name={runtime}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    if not Path(located).is_file() or not shutil.which("setarch"):
        pytest.skip(f"there is no {runtime}, or no setarch")
    own = [f"-I{ENGINE}", f"-I{ENGINE / 'aten' / 'src'}"]
    others = [f"-isystem{path}" for path in headers.of_this_wheel()]
    sanitize = [f"-fsanitize={names}", "-fno-sanitize-recover=undefined"]
    options = ["-std=c++17", "-O1", "-g1", "-fPIC", "-fvisibility=hidden", *sanitize]

    def compiled(letters: str) -> Path:
        unit, out = folder / f"{letters}.cpp", folder / f"{letters}.o"
        sources = sorted((ENGINE / "aten/src/ATen/cuda/detail").glob(f"LMS{letters}*.cpp"))
        unit.write_text("".join(f'#include "{source}"\n' for source in sources))
        subprocess.run(["g++", *options, *own, *others, "-c", unit, "-o", out], check=True)
        return out

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, UNITS))
    library = folder / "libtorch_lms.so"
    link = ["g++", "-shared", *sanitize, *objects, "-o", library, *headers.linked()]
    subprocess.run(link, check=True)
    return Sanitized(library, located)


@pytest.fixture(scope="module")
def for_threads(tmp_path_factory: pytest.TempPathFactory) -> Sanitized:
    return compile_engine("thread", "libtsan.so", tmp_path_factory.mktemp("thread"))


@pytest.fixture(scope="module")
def for_memory(tmp_path_factory: pytest.TempPathFactory) -> Sanitized:
    folder = tmp_path_factory.mktemp("memory")
    return compile_engine("address,undefined", "libasan.so", folder)


@pytest.mark.parametrize("kernels", ["inline", "async"])
def test_threads(device: Device, for_threads: Sanitized, kernels: str) -> None:
    options = f"suppressions={SUPPRESSIONS} exitcode={REPORTED}"
    done = for_threads.run(device, "on", kernels, TSAN_OPTIONS=options)
    assert done.returncode in (0, REPORTED), done.stderr
    reports = engines_reports(done.stderr)
    assert not reports, "\n".join(reports)


@pytest.mark.parametrize("mode", ["on", "chaos"])
def test_memory(device: Device, for_memory: Sanitized, mode: str) -> None:
    """No bad access and no undefined behaviour. Leaks are not looked for: Python has some."""
    options = f"detect_leaks=0:exitcode={REPORTED}"
    done = for_memory.run(device, mode, "async", ASAN_OPTIONS=options)
    assert done.returncode == 0, done.stderr


def engines_reports(output: str) -> list[str]:
    """Of ThreadSanitizer's reports, those on the engine's own accesses and locks.

    Only the engine is compiled for it. Of all other code it sees the locks and the calls of
    functions such as free, but not the atomics, so that upstream's code looks racy to it.
    """
    reports = [part for part in output.split("=" * 18) if "WARNING: ThreadSanitizer" in part]
    return [report for report in reports if any(map(is_engines, report.split("\n\n")))]


def is_engines(stack: str) -> bool:
    """True if the innermost function is the engine's, or the standard library's called by it."""
    frames = [line for line in stack.splitlines() if line.lstrip().startswith("#")]
    frames = [frame for frame in frames if "(libtsan.so" not in frame]
    if not frames or "created by" in stack:
        return False
    is_standard = frames[0].split(maxsplit=1)[1].startswith("std::")
    return "libtorch_lms.so" in frames[0] or (
        is_standard and any("libtorch_lms.so" in frame for frame in frames)
    )


def test_reports_are_told_apart() -> None:
    engines = """WARNING: ThreadSanitizer: data race (pid=1)
  Write of size 8 at 0x7b44 by thread T2:
    #0 operator delete(void*, unsigned long) tsan_new_delete.cpp:150 (libtsan.so+0x86c3d)
    #1 std::_Sp_counted_base<2>::_M_release() <null> (libtorch_cpu.so+0x1991616)
    #2 at::cuda::lms::Device::count(at::cuda::lms::AllocSource) x.cpp:1 (libtorch_lms.so+0x1)
"""
    upstreams = engines.replace("std::_Sp_counted", "torch::autograd::Engine")
    assert engines_reports("=" * 18 + engines + "=" * 18) == [engines]
    assert engines_reports("=" * 18 + upstreams + "=" * 18) == []
