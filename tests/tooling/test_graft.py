"""Building a wheel: grafting a series on a tiny fake release."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import fake_torch
import pytest
from fake_torch import FakeRelease
from lms_cli import paths


def test_prints_the_path_last_and_keeps_progress_off_standard_output(fake: FakeRelease) -> None:
    result = fake.build()
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{fake.out / fake_torch.LMS_NAME}\n"


def test_contents(pristine: FakeRelease) -> None:
    wheel = zipfile.ZipFile(pristine.out / fake_torch.LMS_NAME)
    official = zipfile.ZipFile(pristine.official)
    names = set(wheel.namelist())
    dist_info = f"torch-{fake_torch.VERSION}+{fake_torch.LABEL}.dist-info"
    assert wheel.testzip() is None
    assert {name for name in names if not name.startswith(dist_info)} - set(
        official.namelist()
    ) == {
        "torch/include/ATen/cuda/Fake.h",
        "torch/cuda/lms.py",
        "torch/lib/libtorch_lms.so",
    }
    assert wheel.read("torch/untouched.py") == official.read("torch/untouched.py")
    assert "__version__ = '9.9.9+cu130.lms1'" in wheel.read("torch/version.py").decode()
    metadata = wheel.read(f"{dist_info}/METADATA").decode()
    assert "\nVersion: 9.9.9+cu130.lms1\n" in metadata
    assert "\nVersion: this line is in the description and stays.\n" in metadata
    header = wheel.read("torch/include/c10/core/Storage.h").decode()
    assert header.startswith("#if !defined(TORCH_STABLE_ONLY)")
    assert "int storage_5();\ninline int lms_hook() { return 42; }\nint storage_6();" in header
    assert wheel.namelist()[-1] == f"{dist_info}/RECORD"
    ordinary = [name for name in wheel.namelist() if not name.startswith(dist_info)]
    assert ordinary == sorted(ordinary)


def test_unzip_and_pip_accept_it(pristine: FakeRelease, tmp_path: Path) -> None:
    wheel = pristine.out / fake_torch.LMS_NAME
    subprocess.run([sys.executable, "-m", "zipfile", "-t", wheel], check=True, capture_output=True)
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    command = [sys.executable, "-c", "import torch; print(torch.__version__)"]
    result = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(target)}
    )
    assert result.stdout == "9.9.9+cu130.lms1\n", result.stderr


def test_two_builds_are_byte_identical(fake: FakeRelease, pristine: FakeRelease) -> None:
    first = (pristine.out / fake_torch.LMS_NAME).read_bytes()
    assert fake.built().read_bytes() == first  # from another folder, compiled afresh


def test_source_date_epoch(fake: FakeRelease) -> None:
    result = fake.build(SOURCE_DATE_EPOCH="1000000000")
    assert result.returncode == 0, result.stderr
    wheel = zipfile.ZipFile(fake.out / fake_torch.LMS_NAME)
    assert wheel.getinfo("torch/version.py").date_time == (2001, 9, 9, 1, 46, 40)
    assert wheel.getinfo("torch/untouched.py").date_time == (2026, 1, 2, 3, 4, 6)


@pytest.mark.parametrize("module", ["files.py", "verbs/build.py"])
def test_a_change_of_the_command_makes_the_wheel_anew(
    fake: FakeRelease, tmp_path: Path, module: str
) -> None:
    checkout = tmp_path / "checkout"
    for part in paths.ROOT.iterdir():
        if part.name in ("build", "patches", "LICENSE"):
            (checkout / part.name).parent.mkdir(exist_ok=True)
            (checkout / part.name).symlink_to(part)
    command = shutil.copytree(paths.ROOT / "scripts", checkout / "scripts") / paths.SCRIPT.name

    def build() -> str:
        arguments = [sys.executable, str(command), "build", fake_torch.VERSION, "--out", fake.out]
        done = subprocess.run(arguments, env=fake.environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert "is up to date" not in build()
    assert "is up to date" in build()
    with (checkout / "scripts" / "lms_cli" / module).open("a") as source:
        source.write("# changed\n")
    assert "is up to date" not in build()


def test_nothing_is_done_twice(fake: FakeRelease) -> None:
    wheel = fake.built()
    before = wheel.stat()
    result = fake.build()
    assert "is up to date" in result.stderr
    assert (wheel.stat().st_ino, wheel.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_wheel_that_was_changed_is_made_again(fake: FakeRelease) -> None:
    wheel = fake.built()
    good = wheel.read_bytes()
    wheel.write_bytes(good[:-100] + bytes(100))
    assert fake.built().read_bytes() == good


def test_a_download_that_was_damaged_is_made_again(fake: FakeRelease) -> None:
    wheel = fake.built()
    good = wheel.read_bytes()
    (cached,) = fake.downloads.glob("*/*.whl")
    cached.write_bytes(bytes(cached.stat().st_size))
    wheel.unlink()
    assert fake.built().read_bytes() == good


def test_a_changed_series_is_built_again(fake: FakeRelease) -> None:
    wheel = fake.built()
    new_file = fake.patches / "files/torch/cuda/lms.py"
    new_file.write_text('"""Changed."""\n')
    fake.built()
    assert zipfile.ZipFile(wheel).read("torch/cuda/lms.py") == b'"""Changed."""\n'


def test_a_changed_source_is_compiled_again(fake: FakeRelease) -> None:
    library = "torch/lib/libtorch_lms.so"
    before = zipfile.ZipFile(fake.built()).read(library)
    source = fake.patches / "files" / fake_torch.NEW_SOURCE
    source.write_text(source.read_text().replace("upstream() +", "upstream() -"))
    assert zipfile.ZipFile(fake.built()).read(library) != before
