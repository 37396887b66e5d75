"""Building: cached, and clear about what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

BUILD = Path(__file__).resolve().parent.parent / "build.py"


def build(out: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BUILD), "--out", str(out), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_nothing_changed_means_nothing_done(build_dir):
    library = build_dir / "lib" / "libsimops.so"
    before = library.stat().st_mtime_ns
    done = build(build_dir)
    assert done.returncode == 0 and "up to date" in done.stdout
    assert library.stat().st_mtime_ns == before


def test_a_missing_compiler_is_named(tmp_path):
    done = build(tmp_path, CXX="no-such-compiler")
    assert done.returncode == 1
    assert "build.py: the compiler no-such-compiler is missing: install g++" in done.stderr
    assert not (tmp_path / "lib").exists()


def test_an_environment_without_torch_is_named(tmp_path):
    venv.create(tmp_path / "empty", with_pip=False)
    done = build(tmp_path / "out", "--torch-python", str(tmp_path / "empty/bin/python"))
    assert done.returncode == 1
    assert "no torch in the environment" in done.stderr


def test_missing_headers_are_named_with_their_package(tmp_path):
    venv.create(tmp_path / "bare", with_pip=False)
    [site] = (tmp_path / "bare/lib").glob("python*/site-packages")
    (site / "torch").mkdir()
    (site / "torch/__init__.py").touch()
    (site / "torch/version.py").write_text("__version__ = '2.11.0+cu130'\ncuda = '13.0'\n")
    headers = site / "nvidia/cu13/include"
    headers.mkdir(parents=True)
    (headers / "cuda_runtime_api.h").touch()
    done = build(tmp_path / "out", "--torch-python", str(tmp_path / "bare/bin/python"))
    assert done.returncode == 1
    assert "pip install 'nvidia-cuda-crt==13.0.*'" in done.stderr
