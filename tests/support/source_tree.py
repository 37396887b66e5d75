"""Upstream's tree of PyTorch 2.6.0, from Debian's source package: it lacks third-party code."""

from __future__ import annotations

import tarfile
import urllib.request
from pathlib import Path

from lms_cli import files, paths

VERSION = "2.6.0"
URL = "https://deb.debian.org/debian/pool/main/p/pytorch/pytorch_2.6.0+dfsg.orig.tar.xz"
SHA256 = "099a9601bc40d67656e75735c44abedb0fbe92d08817852ab7472eebb7e6ddff"  # of Debian 13's


def fetch() -> Path:
    """The archive, from the cache if it was downloaded before."""
    target = paths.downloads() / SHA256 / URL.rpartition("/")[2]
    with files.locked(target):
        if not target.exists():
            with files.written_beside(target) as temporary, urllib.request.urlopen(URL) as answer:
                temporary.write_bytes(answer.read())
                assert files.sha256_of(temporary) == SHA256
    return target


def unpack(target: Path) -> Path:
    """Unpacks the whole tree into an empty folder; returns its root."""
    with tarfile.open(fetch()) as archive:
        archive.extractall(target, filter="data")
    (root,) = target.iterdir()
    return root


def upstream_tests() -> Path:
    """Upstream's own tests, unpacked beside the archive once; nobody may change them."""
    archive = fetch()
    folder = archive.parent / "test"
    with files.locked(folder):
        if not folder.exists():
            with files.folder_beside(folder) as unfinished, tarfile.open(archive) as tree:
                for member in tree:
                    _, _, name = member.name.partition("/")
                    if name.startswith("test/"):
                        member.name = name.removeprefix("test/")
                        tree.extract(member, unfinished, filter="data")
    return folder
