"""Building: cached, and clear about what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import pytest
import simcuda
from support.device import BUILD


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


def test_a_folder_with_a_space(build_dir, tmp_path):
    """LD_PRELOAD ends a path at a space."""
    built = tmp_path / "my files: new"
    shutil.copytree(build_dir, built)
    code = "import torch; print(torch.cuda.device_count(), (torch.ones(3).cuda() + 1).sum().item())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=simcuda.environment(built, capacity="64M", devices=2),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "2 6.0\n"), done.stderr


def test_a_link_of_somebody_else_is_not_followed(build_dir, tmp_path, monkeypatch):
    built = tmp_path / "my files"
    shutil.copytree(build_dir, built)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"simcuda-{os.getuid()}").mkdir(mode=0o777)
    (tmp_path / f"simcuda-{os.getuid()}").chmod(0o777)
    with pytest.raises(simcuda.SimulationError, match="of this user alone"):
        simcuda.environment(built)
