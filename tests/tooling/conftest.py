"""Fixtures of the tooling's tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import fake_torch
import pytest
from fake_torch import FakeRelease
from lms_cli import compile, paths
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


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripted")
    settings = {
        "CMAKE_CXX_COMPILER": str(compile.find_compiler()),
        "LMS_SOURCE_DIR": str(paths.PATCHES / "files"),
    }
    project = Path(__file__).parent / "scripted"
    return compile.run_cmake(project, folder, "lms-scripted", "lms-scripted", settings)


@pytest.fixture
def replays(tmp_path: Path, scripted: Path) -> Replays:
    return Replays(tmp_path, scripted)
