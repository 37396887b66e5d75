"""The real thing: the official wheel, the real series, and the environment `lms test` made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fake_torch
import pytest
from lms_cli import paths, releases
from lms_cli.checks import Outcome
from lms_cli.environments import lms_environment
from lms_cli.index import manifest
from lms_cli.releases import Release
from lms_cli.series import series, verify_series
from lms_cli.wheel import builds

PYTHON = releases.running_python()
RELEASE = releases.default(paths.PATCHES)
LISTED = releases.load(paths.PATCHES)
# The oldest, with the C++ library's ABI from before C++11, and the one that a rebase compiles too.
TO_BUILD = [
    one for one in releases.for_python(PYTHON, paths.PATCHES) if one.version in ("2.6.0", "2.12.1")
]


def lms(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(paths.SCRIPT), *arguments]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)


@pytest.fixture(scope="module")
def wheel() -> Path:
    result = lms("build", RELEASE.version)
    assert result.returncode == 0, result.stderr
    return Path(result.stdout.splitlines()[-1])


def test_every_check_passes(wheel: Path) -> None:
    result = lms("verify", str(wheel))
    assert result.returncode == 0, result.stdout + result.stderr
    outcomes = [line.split()[0] for line in result.stdout.splitlines()[1:]]
    assert outcomes == ["pass"] * len(outcomes)


@pytest.mark.parametrize("version", LISTED)
def test_every_series_fits_what_was_published(version: str) -> None:
    outcomes = {check.name: check.outcome for check in verify_series.verify(LISTED[version])}
    assert outcomes == dict.fromkeys(verify_series.CHECKS, Outcome.PASSED)


@pytest.fixture
def passing_download(release: Release) -> Iterator[None]:
    """The release's official wheel, 0.5 to 0.9 GB, is not kept if it had to be downloaded."""
    folder = paths.downloads() / release.wheels[PYTHON].sha256
    before = {*folder.glob("*.whl")}
    yield
    for wheel in {*folder.glob("*.whl")} - before:
        wheel.unlink()


@pytest.mark.usefixtures("passing_download")
@pytest.mark.parametrize("release", TO_BUILD, ids=lambda release: release.version)
def test_a_release_has_its_wheel(release: Release, tmp_path: Path) -> None:
    """Building one verifies it."""
    result = lms("build", release.version, "--out", str(tmp_path))
    assert result.returncode == 0, result.stderr
    made = Path(result.stdout.splitlines()[-1])
    assert made.name.startswith(f"torch-{release.lms_version}-")
    made.unlink()


def test_every_release_was_compiled() -> None:
    """What is published is of the sources that are here: the library of each release."""
    series_here = {version: series.load(one).digest() for version, one in LISTED.items()}
    small = [one for one in manifest.load(paths.INDEX).values() if one.project == "torch-lms"]
    made_from = [one.made_from["releases"] for one in small]
    assert [set(one) for one in made_from if len(one) == len(LISTED)] == [set(LISTED)]
    for made in made_from:
        assert made == {version: {"series_sha256": series_here[version]} for version in made}


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """An LMS_HOME that has the tools only."""
    home = tmp_path / "home"
    home.mkdir()
    tools = fake_torch.tools_folder()
    (home / tools.name).symlink_to(tools)
    return home


def test_built_elsewhere_it_is_byte_identical(wheel: Path, elsewhere: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = lms("build", RELEASE.version, "--out", str(out), LMS_HOME=str(elsewhere))
    assert result.returncode == 0, result.stderr
    assert "compiling" in result.stderr
    again = out / wheel.name
    assert builds.files.sha256_of(again) == builds.files.sha256_of(wheel)
    again.unlink()


@pytest.mark.parametrize(("old", "new"), [("2.11.0", "2.12.1"), ("2.14.1", "2.15.0")])
def test_a_rebase_gives_what_is_committed(
    old: str, new: str, elsewhere: Path, tmp_path: Path
) -> None:
    """As if the release were new; but for the lock, which has what is newest on the day."""
    (elsewhere / "libraries").symlink_to(paths.home() / "libraries")
    release = releases.find(new, paths.PATCHES)
    patches = tmp_path / "patches"
    shutil.copytree(paths.PATCHES, patches, ignore=shutil.ignore_patterns(release.tag))
    listed = patches / releases.FILE_NAME
    committed = listed.read_text(encoding="utf-8")
    listed.write_text(committed.replace(releases.as_row(release), ""), encoding="utf-8")
    variables = {"LMS_PATCHES": str(patches), "LMS_HOME": str(elsewhere)}
    result = lms("rebase", new, "--from", old, **variables)
    assert result.returncode == 0, result.stderr
    assert "conflict" not in result.stdout
    assert listed.read_text(encoding="utf-8") == committed
    made = {path.name: path.read_bytes() for path in (patches / release.tag).iterdir()}
    expected = {path.name: path.read_bytes() for path in release.series.iterdir()}
    assert set(made) == set(expected)
    made.pop(release.lock.name), expected.pop(release.lock.name)
    assert made == expected


def test_it_imports_without_a_device() -> None:
    environment = lms_environment.of(RELEASE)
    code = "import torch; print(torch.__version__, torch.version.git_version)"
    command = [str(environment.python), "-c", code]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.stdout == f"{RELEASE.lms_version} {RELEASE.commit}\n", result.stderr


def test_a_program_runs_on_the_simulated_device(tmp_path: Path) -> None:
    program = tmp_path / "add.py"
    program.write_text(
        "import sys, torch\n"
        "a = torch.arange(5, device='cuda:1')\n"
        "print((a + 1).sum().item(), torch.cuda.device_count(), torch.cuda.get_enabled_lms())\n"
        "sys.exit(3)\n"
    )
    options = ("--device", "sim", "--devices", "2", "--capacity", "64M")
    result = lms("run", *options, str(program))
    assert (result.returncode, result.stdout) == (3, "15 2 True\n"), result.stderr
