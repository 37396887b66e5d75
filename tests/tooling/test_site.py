"""The documents as a site: all links hold, and a browser fetches nothing from elsewhere."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from lms_cli import paths
from lms_cli.errors import DocumentError
from lms_cli.site import building

FETCHED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\ssrc=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b[^>]*\shref=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|url\(["']?((?:https?:)?//[^)"']+)|@import\s+["']((?:https?:)?//[^"']+)"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "made"
    result = subprocess.run(
        [str(paths.SCRIPT), "docs", "--out", str(folder)], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == str(folder)
    return folder


def test_every_document_is_a_page(site: Path) -> None:
    for document in [paths.ROOT / "README.md", *(paths.ROOT / "docs").rglob("*.md")]:
        place = document.relative_to(paths.ROOT).with_suffix("")
        page = place.parent if place.name == "README" else place
        assert (site / page / "index.html").is_file()


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    read = [path for path in site.rglob("*") if path.suffix in (".html", ".css")]
    assert read
    for path in read:
        text = path.read_text()
        assert not FETCHED.findall(text), path
        # For these the theme's script would load one from elsewhere.
        assert 'class="mermaid"' not in text, path


def test_search_finds_the_functions(site: Path) -> None:
    assert "docs/api/#torch.cuda.lms.pin" in (site / "search" / "search_index.json").read_text()


def test_the_reference_has_every_public_function(site: Path) -> None:
    source = paths.PATCHES / "files" / "torch" / "cuda" / "lms.py"
    functions = {
        node.name
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }
    page = (site / "docs" / "api" / "index.html").read_text()
    shown = re.findall(r'<h3 id="torch\.cuda\.lms\.(\w+)"', page)
    assert sorted(shown) == sorted(functions | {"stats"})


def copy_of_the_documents(root: Path) -> Path:
    for name in ("docs", "scripts/lms_cli/site", "scripts/simcuda", "patches/files/torch"):
        shutil.copytree(paths.ROOT / name, root / name)
    for name in ("README.md", "LICENSE", "build/README.md", "ci/README.md", "wheels/README.md"):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy(paths.ROOT / name, root / name)
    shutil.copytree(paths.LOCKS, root / "scripts" / "locks")
    return root


def test_a_broken_link_is_an_error(tmp_path: Path) -> None:
    root = copy_of_the_documents(tmp_path / "root")
    folder = tmp_path / "made"
    building.build(folder, root)
    before = (folder / "docs" / "releases" / "index.html").read_text()

    page = root / "docs" / "releases.md"
    page.write_text(f"{page.read_text()}\n[a](gone.md) [b](api.md#gone) [c](../README.md#gone)\n")
    (root / "docs" / "unlisted.md").write_text("# In no menu\n")
    with pytest.raises(DocumentError) as error:
        building.build(folder, root)
    for complaint in ("'gone.md'", "'api.md#gone'", "'../README.md#gone'", "unlisted.md"):
        assert complaint in str(error.value)
    assert (folder / "docs" / "releases" / "index.html").read_text() == before
