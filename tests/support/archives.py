"""Archives of sources that tests are made with, from the cache if they were downloaded before."""

from __future__ import annotations

import tarfile
import urllib.request
from pathlib import Path

from lms_cli import files, paths


def fetch(url: str, sha256: str) -> Path:
    """The archive."""
    target = paths.downloads() / sha256 / url.rpartition("/")[2]
    with files.locked(target):
        if not target.exists():
            with files.written_beside(target) as temporary, urllib.request.urlopen(url) as answer:
                temporary.write_bytes(answer.read())
                assert files.sha256_of(temporary) == sha256
    return target


def unpacked(archive: Path, part: str) -> Path:
    """A folder of the archive's, unpacked beside it once; nobody may change it."""
    folder = archive.parent / part
    with files.locked(folder):
        if not folder.exists():
            with files.folder_beside(folder) as unfinished, tarfile.open(archive) as tree:
                for member in tree:
                    _, _, name = member.name.partition("/")
                    if name.startswith(f"{part}/"):
                        member.name = name.removeprefix(f"{part}/")
                        tree.extract(member, unfinished, filter="data")
    return folder
