"""The documents as a site: all links hold, and a browser fetches nothing from elsewhere."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from lms_cli import cli, paths
from lms_cli.errors import DocumentError, UsageError
from lms_cli.site import building
from support import browser

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
    docs = paths.ROOT / "docs"
    for document in [paths.ROOT / "README.md", *docs.rglob("*.md"), *docs.rglob("*.ipynb")]:
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
    public = next(
        ast.literal_eval(node.value)
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    page = (site / "docs" / "api" / "index.html").read_text()
    shown = re.findall(r'<h3 id="torch\.cuda\.lms\.(\w+)"', page)
    assert sorted(shown) == sorted(public)
    of_torch_cuda = shown[: shown.index("is_available")]
    for patch in paths.PATCHES.glob("v*/torch-cuda-lms-api.patch"):
        exported = re.findall(r"^\+    (\w+),$", patch.read_text(), re.MULTILINE)
        assert sorted(of_torch_cuda) == sorted(exported), patch


def test_tables_and_names_fit(site: Path) -> None:
    """On a usual screen, with nothing wrong on the console."""
    chromium = browser.find()
    wide = """[...document.querySelectorAll(".md-typeset__table")]
      .filter(table => table.scrollWidth > table.parentElement.clientWidth).length"""
    broken = """[...document.querySelectorAll("td code, th code")]
      .filter(name => !/[\\s-]/.test(name.textContent))
      .filter(name => name.getClientRects().length > 1).length"""
    for page in (".", "docs/guide/slow", "docs/api", "docs/timeline"):
        looks = [{"run": wide}, {"run": broken}]
        visit = chromium.visit(site / page / "index.html", *looks, dark=page == ".")
        assert (page, visit.results, visit.errors) == (page, [0, 0], [])


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


def test_only_a_site_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    for folder in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(UsageError, match="no site"):
            building.build(folder)
    assert (tmp_path / "mine.txt").read_text() == "kept"


@pytest.fixture
def address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def fetched(address: str, seconds: float) -> str:
    """The first page of a server that is starting."""
    end = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(f"http://{address}/") as answer:
                return str(answer.read(), "utf-8")
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def interrupted(process: subprocess.Popen[str]) -> str:
    """Ends it as a user does; what it said. While MkDocs builds, it may miss an interrupt."""
    for _ in range(6):
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=10)[1]
    os.killpg(process.pid, signal.SIGKILL)
    raise AssertionError("it goes on after interrupts")


def test_serving(address: str) -> None:
    command = [str(paths.SCRIPT), "docs", "--serve", address]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert "<h1" in fetched(address, seconds=60)
    finally:
        said = interrupted(process)
    assert process.returncode == cli.INTERRUPTED
    assert "Traceback" not in said


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:99999", "no.such.host.invalid:8000"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UsageError, match="cannot be served"):
        building.serve(address)


def test_an_address_that_is_taken() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(UsageError, match="in use"),
    ):
        building.serve(f"127.0.0.1:{server.getsockname()[1]}")
