"""Versions that a user constrains pip and uv to are for other environments than this project's."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_torch import VERSION, FakeRelease


@pytest.fixture
def constraints(tmp_path: Path) -> Path:
    """Another torch, and another version of what is locked beside it, for all that pip installs."""
    path = tmp_path / "constraints.txt"
    path.write_text("torch==1.0\nfake-dependency==1.0\n")
    return path


@pytest.fixture
def configuration(constraints: Path, fake: FakeRelease) -> Path:
    """A configuration file of pip's with them, and with the only index there is."""
    path = constraints.with_name("pip.conf")
    path.write_text(f"[global]\nfind-links = {fake.index}\nconstraint = {constraints}\n")
    return path


def test_of_the_configuration(fake: FakeRelease, configuration: Path) -> None:
    """They are ignored, and the index is not."""
    result = fake.build(PIP_FIND_LINKS="", PIP_CONFIG_FILE=str(configuration))
    assert result.returncode == 0, result.stderr


def test_of_the_environment(fake: FakeRelease, constraints: Path) -> None:
    result = fake.build(PIP_CONSTRAINT=str(constraints))
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("variable", ["UV_CONSTRAINT", "UV_OVERRIDE"])
def test_of_uv(lockable: FakeRelease, constraints: Path, variable: str) -> None:
    result = lockable.lms("lock", VERSION, **{variable: str(constraints)})
    assert result.returncode == 0, result.stderr
    assert "\nfake-dependency==1.5 " in (lockable.series / "requirements.lock").read_text()
