"""A package index on loopback that answers range requests, or fails to in a chosen way."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import loopback


@dataclass
class RangeIndex:
    """Where the index is, how it behaves, and what it sent."""

    files: Path
    url: str = ""  # for PIP_INDEX_URL
    listing: str | None = None  # sent instead of what `files` holds
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)  # of rows, by file name
    fault: str = ""  # "whole", "cut", "short", "long" or "no size": what is wrong with a range
    sent: list[int] = field(default_factory=list)  # bytes of each part of a file

    def page(self) -> str:
        """The list of the wheels that are there (PEP 691)."""
        rows = [
            {
                "filename": path.name,
                "url": f"../../{path.name}",
                "hashes": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()},
                "size": path.stat().st_size,
                "yanked": False,
                **self.changes.get(path.name, {}),
            }
            for path in sorted(self.files.glob("*.whl"))
        ]
        return json.dumps({"files": rows}) if self.listing is None else self.listing


class Handler(loopback.Handler):
    """Sends what a `RangeIndex` says."""

    index: RangeIndex

    def send_head(self) -> Any:
        if self.path == "/simple/torch/":
            page = self.index.page().encode()
            return self.send(200, {}, page, len(page))
        if self.index.fault == "whole":
            del self.headers["Range"]
        return super().send_head()

    def send_part(self, start: int, end: int) -> Any:
        content = (self.index.files / self.path.rpartition("/")[2]).read_bytes()
        fault = self.index.fault if end - start > 1 else ""  # one byte asks for the size only
        part = content[start:end]
        part = {"short": part[:-1], "long": part + b"!"}.get(fault, part)
        size = "*" if self.index.fault == "no size" else str(len(content))
        self.index.sent.append(len(part))
        body = part[: len(part) // 2] if fault == "cut" else part
        return self.send(206, {"Content-Range": f"bytes {start}-{end - 1}/{size}"}, body, len(part))

    def send(self, status: int, headers: dict[str, str], body: bytes, length: int) -> io.BytesIO:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()
        return io.BytesIO(body)

    def copyfile(self, source: Any, outputfile: Any) -> None:
        with contextlib.suppress(ConnectionError):  # a client that has seen enough
            super().copyfile(source, outputfile)


@contextlib.contextmanager
def serving(files: Path) -> Iterator[RangeIndex]:
    """Serve the wheels of a folder as an index with the project `torch`."""
    index = RangeIndex(files)
    web = loopback.Web()
    index.url = f"{web.serve(files, Handler, index=index)}/simple"
    try:
        yield index
    finally:
        for stop in web.stop:
            stop()
