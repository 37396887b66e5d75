"""Fixtures of the tooling's tests."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import fake_index
import fake_torch
import pytest
from fake_torch import FakeRelease
from lms_cli import files, paths
from lms_cli.environments import locking
from lms_cli.index import static
from lms_cli.wheel import compile, toolchain
from replays import Replays


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> FakeRelease:
    """A fake release with its wheel built once; tests must not change it."""
    fake = fake_torch.make(tmp_path_factory.mktemp("pristine"))
    fake.built()
    return fake


@pytest.fixture
def fake(pristine: FakeRelease, tmp_path: Path) -> FakeRelease:
    """A fake release of the test's own, nothing downloaded and nothing built."""
    root = tmp_path / "fake"
    root.mkdir()
    for folder in (pristine.index, pristine.patches):
        shutil.copytree(folder, root / folder.name)
    (root / "home").mkdir()
    for tools in pristine.home.glob("tools-*"):
        (root / "home" / tools.name).symlink_to(tools.resolve())
    return FakeRelease(root)


@pytest.fixture
def lockable(fake: FakeRelease) -> FakeRelease:
    """A fake release whose packages uv can lock."""
    text = locking.RELEASE.read_text() + locking.TOOLS.read_text()
    for name in ["setuptools", "fake-dependency", *re.findall(r"^[a-z][a-z-]+$", text, re.M)]:
        fake_torch.write_pure_wheel(fake.index, name.replace("-", "_"), "1.5")
    chain = ("cuda_toolkit", "nvidia-cuda-runtime", "nvidia-cuda-crt")
    for name, needs in zip(chain, (*chain[1:], "")):
        fake_torch.write_pure_wheel(fake.index, name.replace("-", "_"), "1.5", needs)
    fake.variables |= {"UV_NO_INDEX": "1", "UV_FIND_LINKS": str(fake.index), "UV_OFFLINE": "1"}
    return fake


@pytest.fixture(scope="session")
def lms_wheels(pristine: FakeRelease, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One wheel of each kind: that of the fake release, and a small one."""
    small = fake_index.write_small(tmp_path_factory.mktemp("small"))
    return [pristine.out / fake_index.TORCH, small]


@pytest.fixture(scope="session")
def published(lms_wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package index of both wheels; tests must not change it."""
    folder = tmp_path_factory.mktemp("published") / "wheels"
    static.add(folder, lms_wheels, None)
    static.make(folder)
    return folder


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The program, made once for all processes that run tests."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "scripted"
    settings = {
        "CMAKE_CXX_COMPILER": str(toolchain.find_compiler()),
        "LMS_SOURCE_DIR": str(paths.PATCHES / "files"),
    }
    project = Path(__file__).parent / "scripted"
    with files.locked(folder):
        return compile.run_cmake(project, folder, "lms-scripted", "lms-scripted", settings)


@pytest.fixture
def replays(tmp_path: Path, scripted: Path) -> Replays:
    return Replays(tmp_path, scripted)
