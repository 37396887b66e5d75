"""The recipe of a build from source, run on a tiny source tree with a real git and a real pip."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fake_torch
import pytest
from fake_torch import CUDA_INIT, CUDA_INIT_TEXT, HEADER, HEADER_TEXT, VERSION, FakeRelease

SETUP = """
import os
from setuptools import setup
version = os.environ["PYTORCH_BUILD_VERSION"]
setup(name="torch", version=version, packages=["torch.cuda"])
"""


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def upstream(fake: FakeRelease, tmp_path: Path) -> Path:
    """A source tree with the release's tag; releases.yaml names its commit."""
    tree = tmp_path / "upstream"
    texts = {
        HEADER: HEADER_TEXT,
        CUDA_INIT: CUDA_INIT_TEXT,
        "setup.py": SETUP,
        "requirements.txt": "",
    }
    for name, text in texts.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    git(tree.parent, "init", "--quiet", str(tree))
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "Release")
    git(tree, "tag", f"v{VERSION}")
    fake.pin(commit=git(tree, "rev-parse", "HEAD"))
    return tree


def recipe(fake: FakeRelease, folder: Path) -> Path:
    result = fake.lms("build", VERSION, "--source", "--out", str(folder))
    assert (result.returncode, result.stdout) == (0, f"{folder}\n"), result.stderr
    return folder / "build.sh"


def run(script: Path, upstream: Path) -> subprocess.CompletedProcess[str]:
    variables = {
        "REPOSITORY": upstream.as_uri(),
        "PYTHON": sys.executable,
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_CONSTRAINT": os.devnull,
    }
    return subprocess.run([str(script)], env=variables, capture_output=True, text=True)


def test_it_builds_the_wheel(fake: FakeRelease, upstream: Path, tmp_path: Path) -> None:
    folder = tmp_path / "recipe"
    script = recipe(fake, folder)
    assert "@" not in (folder / "Containerfile").read_text()
    for _ in range(2):  # a second run goes on where the first one ended
        result = run(script, upstream)
        assert result.returncode == 0, result.stderr
    (wheel,) = (folder / "dist").glob("*.whl")
    assert wheel.name.startswith(f"torch-{VERSION}+{fake_torch.LABEL}-")
    clone = folder / "pytorch"
    assert (clone / fake_torch.NEW_SOURCE).read_text() == fake_torch.NEW_FILES[
        fake_torch.NEW_SOURCE
    ]
    assert "set_enabled_lms" in (clone / CUDA_INIT).read_text()
    assert len(git(clone, "log", "--format=%s").splitlines()) == 3  # upstream, files, hook


def test_a_tree_that_is_not_the_release_is_refused(
    fake: FakeRelease, upstream: Path, tmp_path: Path
) -> None:
    script = recipe(fake, tmp_path / "recipe")
    (upstream / HEADER).write_text(HEADER_TEXT + "// moved on\n")
    git(upstream, "commit", "--quiet", "--all", "--message", "Another tag")
    git(upstream, "tag", "--force", f"v{VERSION}")
    result = run(script, upstream)
    assert result.returncode == 1
    assert f"is not v{VERSION} with the series: " in result.stderr
    assert not (tmp_path / "recipe" / "dist").exists()


def test_a_release_is_needed(fake: FakeRelease) -> None:
    assert fake.lms("build", "--source").returncode == 2
