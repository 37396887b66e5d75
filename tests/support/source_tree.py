"""Upstream's tree of PyTorch 2.6.0, from Debian's source package: it lacks third-party code."""

from __future__ import annotations

import tarfile
from pathlib import Path

from support import archives

VERSION = "2.6.0"
URL = "https://deb.debian.org/debian/pool/main/p/pytorch/pytorch_2.6.0+dfsg.orig.tar.xz"
SHA256 = "099a9601bc40d67656e75735c44abedb0fbe92d08817852ab7472eebb7e6ddff"  # of Debian 13's


def fetch() -> Path:
    """The archive."""
    return archives.fetch(URL, SHA256)


def unpack(target: Path) -> Path:
    """Unpacks the whole tree into an empty folder; returns its root."""
    with tarfile.open(fetch()) as archive:
        archive.extractall(target, filter="data")
    (root,) = target.iterdir()
    return root


def upstream_tests() -> Path:
    """Upstream's own tests, unpacked beside the archive once; nobody may change them."""
    return archives.unpacked(fetch(), "test")
