"""Threads that compute on the same tensors while LMS moves them; see checks/races.py."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import checked
import headers
import pytest
from support.device import TESTS, Device

PROGRAM = checked.CHECKS / "races.py"
ENGINE = TESTS.parent / "patches" / "files"
SUPPRESSIONS = Path(__file__).with_name("tsan.supp")
THREADS, ROUNDS = 4, 120
REPORTED = 66  # exit status: ThreadSanitizer has reported something


@pytest.fixture(scope="module")
def digest(device: Device) -> str:
    """Of all results, with LMS off."""
    return run(device, "off", "inline")


def run(device: Device, mode: str, kernels: str) -> str:
    done = device.run(PROGRAM, "installed", mode, THREADS, ROUNDS, capacity="64M", kernels=kernels)
    assert done.status == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kernels", ["inline", "async"])
@pytest.mark.parametrize("mode", ["on", "chaos"])
def test_results_do_not_depend_on_lms(device: Device, digest: str, mode: str, kernels: str) -> None:
    assert run(device, mode, kernels) == digest


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine, compiled with ThreadSanitizer."""
    folder = tmp_path_factory.mktemp("sanitized")
    own = [f"-I{ENGINE}", f"-I{ENGINE / 'aten' / 'src'}"]
    others = [f"-isystem{path}" for path in headers.of_this_wheel()]
    options = ["-std=c++17", "-O1", "-g1", "-fPIC", "-fvisibility=hidden", "-fsanitize=thread"]

    def compiled(source: Path) -> Path:
        out = folder / f"{source.stem}.o"
        subprocess.run(["g++", *options, *own, *others, "-c", source, "-o", out], check=True)
        return out

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, (ENGINE / "aten/src/ATen/cuda/detail").glob("LMS*.cpp")))
    library = folder / "libtorch_lms.so"
    link = ["g++", "-shared", "-fsanitize=thread", *objects, "-o", library, *headers.linked()]
    subprocess.run(link, check=True)
    return library


@pytest.mark.parametrize(("mode", "kernels"), [("on", "inline"), ("on", "async")])
def test_thread_sanitizer(device: Device, sanitized: Path, mode: str, kernels: str) -> None:
    runtime = subprocess.run(
        ["g++", "-print-file-name=libtsan.so"], check=True, capture_output=True, text=True
    ).stdout.strip()
    if not Path(runtime).is_file() or not shutil.which("setarch"):
        pytest.skip("there is no libtsan.so, or no setarch")
    environment = device.environment(capacity="64M", kernels=kernels)
    environment["LD_PRELOAD"] = f"{runtime}:{environment.get('LD_PRELOAD', '')}"
    environment["TSAN_OPTIONS"] = f"suppressions={SUPPRESSIONS} exitcode={REPORTED}"
    done = subprocess.run(
        # ThreadSanitizer cannot map its shadow memory where addresses are too random.
        ["setarch", platform.machine(), "-R", sys.executable, PROGRAM, sanitized, mode, "4", "20"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode in (0, REPORTED), done.stderr
    reports = engines_reports(done.stderr)
    assert not reports, "\n".join(reports)


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
