"""Fixtures of the tooling's tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import fake_torch
import pytest
from fake_torch import FakeRelease


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
