"""What `lms status` says of releases, here and on the index."""

from __future__ import annotations

import json
from pathlib import Path

import fake_torch
import pytest
import yaml
from fake_torch import LMS_NAME, FakeRelease
from lms_cli import paths, releases, status
from lms_cli.index import manifest
from lms_cli.index.manifest import Published
from lms_cli.releases import Release
from lms_cli.wheel import builds
from range_index import serving

PYTHON = releases.dotted(fake_torch.PYTHON)


def release_of(fake: FakeRelease) -> Release:
    return releases.load(fake.patches)[fake_torch.VERSION]


def test_the_table_has_every_release_that_is_supported() -> None:
    rows = [status.row(release) for release in releases.load(paths.PATCHES).values()]
    assert [row.release for row in rows] == list(releases.load(paths.PATCHES))
    assert all(row.patches and row.files and row.lines for row in rows)


def test_json(fake: FakeRelease) -> None:
    result = fake.lms("status", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {
        "releases": [
            {
                "release": "9.9.9",
                "cuda": "13.0",
                "commit": fake_torch.COMMIT,
                "pythons": [PYTHON],
                "patches": 1,
                "files": 2,
                "lines": 5,
                "built": [],
                "published": [],
            }
        ],
        "online": None,
    }


def test_the_table(pristine: FakeRelease) -> None:
    result = pristine.lms("status")
    assert result.returncode == 0, result.stderr
    cells = [cell.strip() for cell in result.stdout.splitlines()[3].split("│")[1:-1]]
    assert cells == ["9.9.9", "13.0", "0123456789ab", PYTHON, "1", "2", "5", "0/1", "0/1"]


def test_wheels_that_were_built_and_published(
    fake: FakeRelease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMS_HOME", str(fake.home))
    monkeypatch.setattr(paths, "INDEX", tmp_path / "wheels")
    other = fake_torch.LMS_NAME.replace(fake_torch.LABEL, "cu130.lms2")
    hashes = {"sha256": "0" * 64, "metadata_sha256": "0" * 64}
    rows = {
        name: Published(filename=name, size=1, libraries={}, made_from={}, **hashes)
        for name in (other, LMS_NAME)
    }
    builds.wheels_folder().mkdir()
    (builds.wheels_folder() / other).touch()
    manifest.write(paths.INDEX, {other: rows[other]})
    row = status.row(release_of(fake))
    assert (row.built, row.published) == ((), ())  # another version of ours is not counted
    (builds.wheels_folder() / LMS_NAME).touch()
    manifest.write(paths.INDEX, rows)
    row = status.row(release_of(fake))
    assert (row.built, row.published) == ((PYTHON,), (PYTHON,))


LINUX = "cp312-cp312-manylinux_2_28_x86_64.whl"


def test_releases_on_the_index_that_are_not_supported(fake: FakeRelease) -> None:
    names = {
        f"torch-9.9.8-{LINUX}": False,  # older than our oldest
        f"torch-9.9.10-{LINUX}": False,
        f"torch-9.10.0-1-{LINUX}": False,
        "torch-9.10.0-cp313-cp313-manylinux_2_28_x86_64.whl": True,
        f"torch-9.11.0-{LINUX}": True,
        f"torch-10.0.0rc1-{LINUX}": False,
        "torch-11.0.0-cp312-none-macosx_10_9_x86_64.whl": False,
        "torch-12.0.0-cp312-cp312-manylinux_2_28_aarch64.whl": False,
        "torch-13.0.0-cp312-cp312-win_amd64.whl": False,
        "torch-14.0.0.tar.gz": False,
        "torch-15.0.0-odd.whl": False,
    }
    for name in names:
        (fake.index / name).touch()
    with serving(fake.index) as index:
        index.changes = {name: {"yanked": yanked} for name, yanked in names.items()}
        result = fake.lms("status", "--online", "--json", PIP_INDEX_URL=index.url)
        assert result.returncode == 0, result.stderr
        found = json.loads(result.stdout)["online"]
        assert found == {"unsupported": {"9.9.10": "", "9.10.0": ""}, "pins": {}}
        shown = fake.lms("status", "--online", PIP_INDEX_URL=index.url).stdout.splitlines()
    assert shown[-3:] == [
        "PyTorch 9.9.10 is not supported",
        "PyTorch 9.10.0 is not supported",
        "every pinned wheel is on the index",
    ]


def test_an_earlier_patch_release_of_what_is_supported(fake: FakeRelease) -> None:
    path = fake.patches / releases.FILE_NAME
    content = yaml.safe_load(path.read_text())
    rows = content["releases"]
    wheels = rows["9.9.9"]["wheels"]
    other = {name.replace("9.9.9", "9.8.1"): wheel for name, wheel in wheels.items()}
    rows["9.8.1"] = {**rows["9.9.9"], "wheels": other}
    path.write_text(yaml.safe_dump(content))
    for name in (f"torch-9.9.7-{LINUX}", f"torch-9.8.0-{LINUX}", f"torch-9.8.2-{LINUX}"):
        (fake.index / name).touch()
    with serving(fake.index) as index:
        result = fake.lms("status", "--online", PIP_INDEX_URL=index.url)
    assert result.stdout.splitlines()[-3:] == [
        "PyTorch 9.8.2 is not supported",
        "PyTorch 9.9.7 is not supported, 9.9.9 is",
        f"{fake_torch.WHEEL_NAME.replace('9.9.9', '9.8.1')}: the index does not list it",
    ]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        pytest.param({"yanked": "broken"}, "it was yanked", id="yanked"),
        pytest.param({"filename": f"torch-9.9.9-9-{LINUX}"}, "does not list it", id="gone"),
        pytest.param(
            {"hashes": {"sha256": "f" * 64}}, f"has it with sha256 {'f' * 64}", id="other bytes"
        ),
    ],
)
def test_pinned_wheels_that_the_index_has_no_more(
    fake: FakeRelease, change: dict[str, object], problem: str
) -> None:
    with serving(fake.index) as index:
        index.changes[fake_torch.WHEEL_NAME] = change
        result = fake.lms("status", "--online", PIP_INDEX_URL=index.url)
    assert result.returncode == 0, result.stderr
    assert (
        result.stdout.splitlines()[-2] == "every release on the index since the oldest is supported"
    )
    assert result.stdout.splitlines()[-1].startswith(f"{fake_torch.WHEEL_NAME}: ")
    assert problem in result.stdout.splitlines()[-1]


def test_pinned_wheels_for_another_machine_count_too(fake: FakeRelease) -> None:
    other = fake.index / fake_torch.ARM_NAME
    other.write_bytes(b"of another machine")
    fake.pin_another(other.name)
    other.unlink()
    with serving(fake.index) as index:
        result = fake.lms("status", "--online", PIP_INDEX_URL=index.url)
    assert result.stdout.splitlines()[-1] == f"{other.name}: the index does not list it"


def test_no_network(fake: FakeRelease) -> None:
    result = fake.lms("status", "--online", PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert result.returncode == 3
    assert "Check the network" in result.stderr
