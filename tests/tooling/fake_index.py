"""A tiny package index: the LMS wheel of the fake release, and a small wheel beside it."""

from __future__ import annotations

import hashlib
import html.parser
import json
from pathlib import Path

import fake_torch

TORCH = fake_torch.LMS_NAME
TORCH_INSTALLED = f"torch-{fake_torch.VERSION}+{fake_torch.LABEL}"
SMALL = f"torch_lms-1.0-py3-none-{fake_torch.PLATFORM}.whl"
SMALL_LIBRARY = "torch_lms/v9.9.9/libtorch_lms.so"
SMALL_METADATA = (
    "Metadata-Version: 2.1\nName: torch-lms\nVersion: 1.0\nRequires-Python: >=3.10,<4\n"
)
SMALL_MADE_FROM = {"releases": {"9.9.9": {"series_sha256": "5" * 64}}, "version": "1.0"}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write_small(folder: Path, code: str = "") -> Path:
    """Write a small wheel: the library for one release, made by this project."""
    text = {
        "torch_lms/__init__.py": code,
        SMALL_LIBRARY: "library",
        "torch_lms-1.0.dist-info/METADATA": SMALL_METADATA,
        "torch_lms-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: false\n"
        f"Tag: py3-none-{fake_torch.PLATFORM}\n",
        "torch_lms-1.0.dist-info/LMS.json": json.dumps(
            {**SMALL_MADE_FROM, "added": ["torch_lms/__init__.py"]}
        ),
    }
    path = folder / SMALL
    fake_torch.write_wheel(path, {name: content.encode() for name, content in text.items()})
    return path


def tree(folder: Path) -> dict[str, bytes]:
    """Content of every file by path."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


class Links(html.parser.HTMLParser):
    """The links of a page: text, and attributes."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: dict[str, dict[str, str | None]] = {}
        self.attributes: dict[str, str | None] = {}
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes = dict(attrs) if tag == "a" else {}

    def handle_data(self, data: str) -> None:
        if self.attributes:
            self.found[data] = self.attributes
            self.attributes = {}
