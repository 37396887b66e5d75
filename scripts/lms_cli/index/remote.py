"""Reading a package index: what it lists, and parts of its files by HTTP range requests."""

from __future__ import annotations

import functools
import io
import json
import os
import urllib.parse
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import TYPE_CHECKING

from lms_cli import progress
from lms_cli.errors import NetworkError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

PYPI = "https://pypi.org/simple"
LISTING = "application/vnd.pypi.simple.v1+json"  # PEP 691
TIMEOUT = 60.0  # seconds without a byte
READ_AHEAD = 1 << 20  # bytes; the members that are wanted lie next to each other


@dataclass(frozen=True)
class Listed:
    """One file of a project, as an index lists it."""

    filename: str
    url: str
    sha256: str
    size: int  # bytes; 0 if the index does not say
    yanked: bool


def listing(project: str) -> tuple[Listed, ...]:
    """All files of a project on the index that pip's environment names, else on PyPI.

    Raises:
        NetworkError: the index cannot be reached, or does not speak PEP 691.
    """
    index = os.environ.get("PIP_INDEX_URL") or PYPI
    return _listing(f"{index.rstrip('/')}/{project}/")


@functools.cache
def _listing(url: str) -> tuple[Listed, ...]:
    with (
        progress.step(f"reading {url}", brief=True),
        _open(urllib.request.Request(url, headers={"Accept": LISTING})) as answer,
    ):
        text = answer.read()
        address = answer.geturl()
    try:
        return tuple(
            Listed(
                filename=row["filename"],
                url=urllib.parse.urljoin(address, row["url"]),
                sha256=row["hashes"]["sha256"],
                size=row.get("size", 0),
                yanked=bool(row.get("yanked")),
            )
            for row in json.loads(text)["files"]
        )
    except (ValueError, KeyError, TypeError) as error:
        raise NetworkError(
            f"{url} does not answer as an index of packages does (PEP 691): {error!r}",
            "Set PIP_INDEX_URL to one that does, or unset it for PyPI.",
        ) from error


class RangeFile(io.RawIOBase):
    """A file on a web server, read piece by piece; wrap it in a buffer of `READ_AHEAD` bytes."""

    def __init__(self, url: str) -> None:
        """Ask for the file's size.

        Raises:
            NetworkError: the server cannot be reached, or does not send parts of files.
        """
        self.url = url
        self.position = 0
        with self._get(0, 0) as answer:
            size = answer.headers.get("Content-Range", "").rpartition("/")[2]
        if not size.isdigit():
            raise _no_parts(url)
        self.size = int(size)

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a place in the file."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self.position, os.SEEK_END: self.size}[whence]
        self.position = start + offset
        return self.position

    def tell(self) -> int:
        """The place in the file."""
        return self.position

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read what one request gives.

        Raises:
            NetworkError: the connection broke.
        """
        view = memoryview(buffer).cast("B")
        last = min(self.position + len(view), self.size) - 1
        if last < self.position:
            return 0
        try:
            with self._get(self.position, last) as answer:
                content = answer.read()
        except (OSError, HTTPException) as error:
            raise NetworkError(f"{self.url}: the connection broke: {error}") from error
        if len(content) != last + 1 - self.position:
            raise NetworkError(
                f"{self.url}: asked for {last + 1 - self.position} bytes, got {len(content)}"
            )
        view[: len(content)] = content
        self.position += len(content)
        return len(content)

    def _get(self, first: int, last: int) -> HTTPResponse:
        headers = {"Range": f"bytes={first}-{last}"}
        answer = _open(urllib.request.Request(self.url, headers=headers))
        if answer.status != 206:  # partial content
            answer.close()
            raise _no_parts(self.url)
        return answer


def _no_parts(url: str) -> NetworkError:
    return NetworkError(
        f"{url}: the server does not send parts of files",
        "Set PIP_INDEX_URL to an index that answers range requests, or unset it for PyPI.",
    )


def _open(request: urllib.request.Request) -> HTTPResponse:
    try:
        answer: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
    except (OSError, HTTPException, ValueError) as error:
        raise NetworkError(
            f"cannot read {request.full_url}: {error}",
            "Check the network, the proxy's variables and PIP_INDEX_URL.",
        ) from error
    return answer
