"""pip and uv install from the package index, and refuse what is not as it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import fake_torch
import pytest
from fake_index import SMALL, TORCH, TORCH_INSTALLED, sha256, tree, write_small
from fake_torch import FakeRelease
from lms_cli.environments import virtual
from lms_cli.errors import IntegrityError, NetworkError
from lms_cli.index import static
from loopback import Web

ALL_INSTALLED = {TORCH_INSTALLED, "torch_lms-1.0", "fake_dependency-1.5"}


@dataclass
class Installer:
    """pip or uv, and an empty environment that it installs into."""

    tool: str
    python: Path

    def __call__(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        commands = {
            "pip": [sys.executable, "-m", "pip", f"--python={self.python}", "install"],
            "uv": ["uv", "pip", "install", f"--python={self.python}"],
        }
        settings = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PIP_", "UV_"))
        }
        settings |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1", "PIP_RETRIES": "0"}
        settings |= {"UV_NO_CONFIG": "1", "UV_NO_CACHE": "1"}
        command = [*commands[self.tool], *map(str, arguments)]
        return subprocess.run(command, env=settings, capture_output=True, text=True)

    def only(self, url: str) -> str:
        """The option for an index in place of PyPI."""
        return f"--index-url={url}" if self.tool == "pip" else f"--default-index={url}"

    def also(self, url: str) -> str:
        """The option for a further index, as the documentation has it."""
        return f"--extra-index-url={url}" if self.tool == "pip" else f"--index={url}"

    def installed(self) -> set[str]:
        found = self.python.parents[1].glob("lib/python*/site-packages/*.dist-info")
        return {path.name.removesuffix(".dist-info") for path in found}


@pytest.fixture(params=["pip", "uv"])
def install(request: pytest.FixtureRequest, tmp_path: Path) -> Installer:
    return Installer(request.param, virtual.create_venv(tmp_path / "venv", with_pip=False))


@pytest.fixture
def web() -> Iterator[Web]:
    web = Web()
    yield web
    for stop in web.stop:
        stop()


@pytest.fixture
def pypi(pristine: FakeRelease, tmp_path: Path) -> str:
    """A stand-in for PyPI: the official wheel, what it needs, and what needs it."""
    folder = tmp_path / "pypi"
    folder.mkdir()
    fake_torch.write_pure_wheel(folder, "fake_dependency", "1.5")
    fake_torch.write_pure_wheel(folder, "fake_vision", "1.0", f"torch=={fake_torch.VERSION}")
    shutil.copy(pristine.official, folder)
    for path in folder.glob("*.whl"):
        page = folder / "simple" / path.name.partition("-")[0].replace("_", "-") / "index.html"
        page.parent.mkdir(parents=True)
        page.write_text(f'<!DOCTYPE html><a href="../../{path.name}">{path.name}</a>')
    return (folder / "simple").as_uri()


@pytest.mark.parametrize("origin", ["html", "json", "file"])
def test_install(install: Installer, published: Path, pypi: str, web: Web, origin: str) -> None:
    if origin == "file":
        url = (published / "simple").as_uri()
    else:
        url = f"{web.serve(published, negotiates=origin == 'json')}/simple"
    label = f"torch=={fake_torch.VERSION}+{fake_torch.LABEL}"
    result = install(install.only(pypi), install.also(url), label, "torch_lms")
    assert result.returncode == 0, result.stderr
    assert install.installed() == ALL_INSTALLED
    if origin != "file":
        assert f"/{TORCH}.metadata" in web.asked


def test_install_from_a_clone(install: Installer, published: Path) -> None:
    result = install("--no-index", "--find-links", published, "torch_lms")
    assert result.returncode == 0, result.stderr
    assert install.installed() == {"torch_lms-1.0"}


def test_the_release_without_label_gives_ours_and_stays(
    install: Installer, published: Path, pypi: str, web: Web
) -> None:
    """PyPI has the same release; and what needs exactly that release is content with ours."""
    indexes = (install.only(pypi), install.also(f"{web.serve(published)}/simple"))
    result = install(*indexes, f"torch=={fake_torch.VERSION}")
    assert result.returncode == 0, result.stderr
    assert TORCH_INSTALLED in install.installed()
    result = install(install.only(pypi), "fake_vision")
    assert result.returncode == 0, result.stderr
    assert install.installed() == {TORCH_INSTALLED, "fake_dependency-1.5", "fake_vision-1.0"}


@pytest.mark.parametrize(
    ("damaged", "is_served"),
    [
        pytest.param(SMALL, True, id="wheel"),
        pytest.param(SMALL, False, id="wheel by file:"),
        pytest.param(f"{SMALL}.metadata", True, id="sidecar"),
    ],
)
def test_a_wrong_hash_is_refused(
    install: Installer, published: Path, web: Web, tmp_path: Path, damaged: str, is_served: bool
) -> None:
    folder = Path(shutil.copytree(published, tmp_path / "wheels"))
    if damaged == SMALL:
        write_small(folder, code="import evil\n")
    else:
        (folder / damaged).write_text((folder / damaged).read_text() + "Requires-Dist: evil\n")
    promised = tree(folder)["simple/torch-lms/index.html"].decode()
    root = web.serve(folder) if is_served else folder.as_uri()
    result = install(install.only(f"{root}/simple"), "torch_lms")
    assert result.returncode != 0
    assert install.installed() == set()
    found = sha256((folder / damaged).read_bytes())
    assert found in result.stderr
    assert found not in promised


def test_install_wheels_that_are_published_elsewhere(
    install: Installer, lms_wheels: list[Path], pypi: str, web: Web, tmp_path: Path
) -> None:
    folder, assets = tmp_path / "wheels", tmp_path / "assets" / "v1"
    assets.mkdir(parents=True)
    copies = [Path(shutil.copy(path, tmp_path)) for path in lms_wheels]
    static.add(folder, copies, f"{web.serve(tmp_path / 'assets')}/v1/")
    static.make(folder)
    assert list(folder.glob("*.whl*")) == []
    with pytest.raises(NetworkError, match=r"is listed, but not to be had: .*404"):
        static.check_online(folder)
    for path in copies:
        path.rename(assets / path.name)
        path.with_name(f"{path.name}.metadata").rename(assets / f"{path.name}.metadata")
    static.check(folder)
    static.check_online(folder)
    url = f"{web.serve(folder)}/simple"
    result = install(install.only(pypi), install.also(url), "torch", "torch_lms")
    assert result.returncode == 0, result.stderr
    assert install.installed() == ALL_INSTALLED
    assert f"/v1/{TORCH}.metadata" in web.asked


@pytest.mark.parametrize("suffix", ["", ".metadata"])
def test_another_file_elsewhere_is_seen(
    lms_wheels: list[Path], web: Web, tmp_path: Path, suffix: str
) -> None:
    small = Path(shutil.copy(lms_wheels[1], tmp_path))
    static.add(tmp_path / "wheels", [small], web.serve(tmp_path))
    static.check_online(tmp_path / "wheels")
    changed = tmp_path / f"{SMALL}{suffix}"
    changed.write_bytes(changed.read_bytes() + b"\n")
    with pytest.raises(
        IntegrityError, match=re.escape(f"{SMALL} or its .metadata file is not what")
    ):
        static.check_online(tmp_path / "wheels")
