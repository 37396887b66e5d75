"""Documents name what there is."""

from __future__ import annotations

import re
from html import unescape

from lms_cli import paths

DOCS = paths.ROOT / "docs"
ENGINE = paths.ROOT / "patches" / "files" / "aten" / "src" / "ATen" / "cuda" / "detail"
SOURCE = re.compile(r"\bLMS[A-Z]\w+\b(?!\*)")  # LMSCore* is a group of them


def files_of_the_engine() -> set[str]:
    return {path.stem for path in ENGINE.iterdir()}


def test_internals_describe_every_file_of_the_engine() -> None:
    described = set(SOURCE.findall((DOCS / "internals.md").read_text()))
    assert files_of_the_engine() == described


def test_the_picture_is_that_of_its_text() -> None:
    """After a change of architecture.dot it is made again, by the command at its top."""
    text = (DOCS / "pictures" / "architecture.dot").read_text()
    assert set(SOURCE.findall(text)) <= files_of_the_engine()
    labels = re.findall(r'label="([^"]+)"', text)
    wanted = {line.strip() for label in labels for line in label.split(r"\n")}
    picture = (DOCS / "pictures" / "architecture.svg").read_text()
    assert {
        unescape(line).strip() for line in re.findall(r"<text[^>]*>([^<]+)</text>", picture)
    } == wanted


def test_links_between_documents() -> None:
    for page in [paths.ROOT / "README.md", *DOCS.rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page}: there is no {target}"
