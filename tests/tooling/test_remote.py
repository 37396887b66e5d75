"""Parts of an official wheel over HTTP: only what is needed, checked, or one clear error."""

from __future__ import annotations

import io
import random
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import fake_torch
import pytest
from fake_torch import FakeRelease
from lms_cli import download, releases
from lms_cli.errors import LmsError, NetworkError, WheelError
from lms_cli.index import remote
from lms_cli.releases import OfficialWheel, Release
from lms_cli.wheel import wheelfile
from lms_cli.wheel.wheelfile import Wheel
from range_index import RangeIndex, serving

LIBRARY = "torch/lib/libtorch_cuda.so"
DIST_INFO = f"torch-{fake_torch.VERSION}.dist-info"
HEADER = f"torch/include/{fake_torch.HEADER}"
MEMBERS = {
    HEADER: fake_torch.HEADER_TEXT.encode(),
    "torch/include/torch/csrc/Device.h": b"#pragma once\n",
    LIBRARY: random.Random(0).randbytes(8 * remote.READ_AHEAD),
    "torch/version.py": fake_torch.VERSION_PY.encode(),
    "torch/_C/__init__.pyi": b"class Device: ...\n",
    "torch/bin/protoc": b"#!",
    "functorch/__init__.py": b"",
    f"{DIST_INFO}/METADATA": fake_torch.METADATA.encode(),
}
TEXTS = {
    name
    for name in (*MEMBERS, f"{DIST_INFO}/RECORD")
    if name.startswith((DIST_INFO, "torch/include/", "torch/version", "torch/_C"))
}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that is mostly a library."""
    path = tmp_path_factory.mktemp("published") / fake_torch.WHEEL_NAME
    fake_torch.write_wheel(path, MEMBERS)
    return path


@pytest.fixture
def fake(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRelease:
    """A release with that wheel and no series, and an empty cache."""
    fake = FakeRelease(tmp_path)
    for folder in (fake.index, fake.patches):
        folder.mkdir()
    shutil.copy(published, fake.official)
    fake.pin()
    monkeypatch.setenv("XDG_CACHE_HOME", str(fake.downloads.parent))
    return fake


@pytest.fixture
def index(fake: FakeRelease, monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeIndex]:
    """The index that has it."""
    with serving(fake.index) as running:
        monkeypatch.setenv("PIP_INDEX_URL", running.url)
        yield running


def pinned(fake: FakeRelease) -> OfficialWheel:
    return release_of(fake).wheel_for(fake_torch.PYTHON)


def release_of(fake: FakeRelease) -> Release:
    return releases.load(fake.patches)[fake_torch.VERSION]


def kept(fake: FakeRelease) -> list[str]:
    """Files in the cache."""
    return [path.name for path in fake.downloads.rglob("*") if path.is_file()]


def test_what_an_index_lists(index: RangeIndex, fake: FakeRelease) -> None:
    index.changes[fake_torch.WHEEL_NAME] = {"yanked": "it is broken"}
    (file,) = remote.listing("torch")
    expected = pinned(fake)
    assert (file.filename, file.sha256, file.size) == (
        expected.filename,
        expected.sha256,
        expected.size,
    )
    assert file.url == index.url.replace("simple", file.filename)
    assert file.yanked


@pytest.mark.parametrize(
    "listing",
    [
        pytest.param("<!DOCTYPE html>", id="HTML"),
        pytest.param("{}", id="no files"),
        pytest.param("[]", id="another shape"),
        pytest.param('{"files": [{"filename": "a", "url": "b", "hashes": {}}]}', id="no sha256"),
    ],
)
def test_a_wrong_listing(index: RangeIndex, listing: str) -> None:
    index.listing = listing
    with pytest.raises(NetworkError, match="does not answer as an index of packages does"):
        remote.listing("torch")


def test_a_project_that_the_index_does_not_have(index: RangeIndex) -> None:
    with pytest.raises(NetworkError, match=r"cannot read .*/nothing/: HTTP Error 404"):
        remote.listing("nothing")


def test_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(NetworkError, match="Check the network"):
        remote.listing("torch")


def test_a_file_read_piece_by_piece_is_the_file(index: RangeIndex, fake: FakeRelease) -> None:
    content = fake.official.read_bytes()
    file = remote.RangeFile(index.url.replace("simple", fake_torch.WHEEL_NAME))
    with io.BufferedReader(file, 1000) as stream:
        for start, count in ((0, 10), (999, 5), (5, 3000), (len(content) - 3, 100)):
            assert stream.seek(start) == start
            assert stream.read(count) == content[start : start + count]
        assert stream.tell() == len(content)
        assert stream.read(1) == b""
        stream.seek(-7, io.SEEK_END)
        assert stream.read() == content[-7:]
        assert max(index.sent) <= 3000


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        pytest.param("whole", "does not send parts of files", id="whole files only"),
        pytest.param("no size", "does not send parts of files", id="a size that it does not know"),
        pytest.param("cut", "the connection broke", id="a connection that breaks"),
        pytest.param("short", "asked for 1048576 bytes, got 1048575", id="too few bytes"),
        pytest.param("long", "asked for 1048576 bytes, got 1048577", id="too many bytes"),
    ],
)
def test_a_server_that_fails(
    index: RangeIndex, fake: FakeRelease, fault: str, message: str
) -> None:
    index.fault = fault
    wheel = pinned(fake)
    url = remote.listing("torch")[0].url
    with pytest.raises(NetworkError, match=message):
        remote.RangeFile(url).readinto(bytearray(remote.READ_AHEAD))
    for fetch in (download.fetch_texts, download.fetch_directory):
        with pytest.raises(NetworkError, match=re.escape(wheel.filename)):
            fetch(wheel)
    assert kept(fake) == []


def test_texts_are_read_without_the_libraries(index: RangeIndex, fake: FakeRelease) -> None:
    texts = download.fetch_texts(pinned(fake))
    with Wheel(texts) as part:
        assert {name: part.read(name) for name in part.members}.keys() == TEXTS
        assert all(part.read(name) == MEMBERS[name] for name in TEXTS - {f"{DIST_INFO}/RECORD"})
    assert sum(index.sent) < len(MEMBERS[LIBRARY]) / 2
    requests = len(index.sent)
    assert download.fetch_texts(pinned(fake)) == texts
    assert len(index.sent) == requests  # the second time they are there


def test_the_directory_is_read_without_the_members(index: RangeIndex, fake: FakeRelease) -> None:
    with zipfile.ZipFile(fake.official) as archive:
        infos = {name: archive.getinfo(name) for name in TEXTS}
    expected = {name: (info.CRC, info.file_size) for name, info in infos.items()}
    assert download.fetch_directory(pinned(fake)) == expected
    assert sum(index.sent) < remote.READ_AHEAD
    requests = len(index.sent)
    assert download.fetch_directory(pinned(fake)) == expected
    assert len(index.sent) == requests
    assert kept(fake) == ["directory.json"]


def test_a_whole_wheel_in_the_cache_is_enough(index: RangeIndex, fake: FakeRelease) -> None:
    wheel = pinned(fake)
    folder = fake.downloads / wheel.sha256
    folder.mkdir(parents=True)
    shutil.copy(fake.official, folder)
    with Wheel(download.fetch_texts(wheel)) as part:
        assert part.members.keys() == TEXTS
    assert download.fetch_directory(wheel).keys() == TEXTS
    assert index.sent == []


def test_a_wheel_that_the_index_does_not_have(index: RangeIndex, fake: FakeRelease) -> None:
    index.changes[fake_torch.WHEEL_NAME] = {"hashes": {"sha256": "0" * 64}}
    with pytest.raises(NetworkError, match=f"lists no {fake_torch.WHEEL_NAME} with sha256"):
        download.fetch_texts(pinned(fake))


def test_a_text_that_is_not_what_record_says(index: RangeIndex, fake: FakeRelease) -> None:
    path = fake.official
    with zipfile.ZipFile(path) as archive:
        record = archive.read(f"{DIST_INFO}/RECORD").decode()
    fake_torch.write_wheel(path, {**MEMBERS, HEADER: b"other\n"}, record)
    fake.pin()
    with pytest.raises(WheelError, match=f"{HEADER} is not what RECORD says"):
        download.fetch_texts(pinned(fake))
    assert kept(fake) == []


def test_the_texts_of_any_wheel_of_a_release(index: RangeIndex, fake: FakeRelease) -> None:
    """The first one, unless another is in the cache."""
    fake_torch.write_wheel(fake.index / fake_torch.ANOTHER_NAME, {**MEMBERS, LIBRARY: b"other"})
    fake.pin_another(fake_torch.ANOTHER_NAME)
    first, other = release_of(fake).wheels.values()
    assert first == pinned(fake)
    assert download.any_texts(release_of(fake)).name == first.filename
    shutil.rmtree(fake.downloads)
    download.fetch_texts(other)
    assert download.any_texts(release_of(fake)).name == other.filename


def test_a_part_of_a_wheel_keeps_the_compressed_bytes(published: Path, tmp_path: Path) -> None:
    target = tmp_path / "part.whl"
    with Wheel(published) as source:
        wheelfile.write_part(target, source, [HEADER, f"{DIST_INFO}/METADATA"])
        with Wheel(target) as part:
            assert part.members.keys() == {HEADER, f"{DIST_INFO}/METADATA"}
            for name, info in part.members.items():
                assert b"".join(part.raw(info)) == b"".join(source.raw(source.members[name]))


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(f"{HEADER},sha256=x,1\n", id="another hash"),
        pytest.param("", id="no row"),
        pytest.param(f"{HEADER},a\n", id="a bad row"),
    ],
)
def test_a_part_must_be_what_record_says(tmp_path: Path, record: str) -> None:
    target = tmp_path / "part.whl"
    fake_torch.write_wheel(tmp_path / "torch.whl", MEMBERS, record)
    with Wheel(tmp_path / "torch.whl") as source, pytest.raises(LmsError):
        wheelfile.write_part(target, source, [HEADER])
    assert [path.name for path in tmp_path.iterdir()] == ["torch.whl"]
