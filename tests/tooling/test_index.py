"""The package index: what its files say, how it is made, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import fake_torch
import pytest
import yaml
from fake_index import (
    SMALL,
    SMALL_LIBRARY,
    SMALL_MADE_FROM,
    SMALL_METADATA,
    TORCH,
    Links,
    sha256,
    tree,
    write_small,
)
from fake_torch import FakeRelease
from lms_cli import paths, releases
from lms_cli.errors import IntegrityError, LmsError, WheelError
from lms_cli.index import manifest as index_manifest
from lms_cli.index import static
from lms_cli.series import series
from lms_cli.wheel import wheelfile


@pytest.fixture
def folder(published: Path, tmp_path: Path) -> Path:
    """An index of the test's own."""
    return Path(shutil.copytree(published, tmp_path / "wheels"))


def test_the_manifest_says_what_each_wheel_is_and_was_made_from(
    pristine: FakeRelease, lms_wheels: list[Path], published: Path
) -> None:
    rows = yaml.safe_load((published / "manifest.yaml").read_text())["wheels"]
    assert set(rows) == {TORCH, SMALL}
    torch, small = rows[TORCH], rows[SMALL]
    for path in lms_wheels:
        assert rows[path.name]["sha256"] == sha256(path.read_bytes())
        assert rows[path.name]["size"] == path.stat().st_size
    library = zipfile.ZipFile(lms_wheels[0]).read("torch/lib/libtorch_lms.so")
    assert torch["libraries"] == {"torch/lib/libtorch_lms.so": sha256(library)}
    release = releases.find(fake_torch.VERSION, pristine.patches)
    assert torch["made_from"] == {
        "release": fake_torch.VERSION,
        "version": release.lms_version,
        "official_sha256": sha256(pristine.official.read_bytes()),
        "series_sha256": series.load(release).digest(),
    }
    assert small["libraries"] == {SMALL_LIBRARY: sha256(b"library")}
    assert small["made_from"] == SMALL_MADE_FROM
    assert small["requires_python"] == ">=3.10,<4"


def test_the_pages_as_html(lms_wheels: list[Path], published: Path) -> None:
    simple = published / "simple"
    assert {name: link["href"] for name, link in Links(simple / "index.html").found.items()} == {
        "torch": "torch/",
        "torch-lms": "torch-lms/",
    }
    ((name, link),) = Links(simple / "torch-lms" / "index.html").found.items()
    metadata = sha256(SMALL_METADATA.encode())
    assert (name, link) == (
        SMALL,
        {
            "href": f"../../{SMALL}#sha256={sha256(lms_wheels[1].read_bytes())}",
            "data-requires-python": ">=3.10,<4",
            "data-core-metadata": f"sha256={metadata}",
            "data-dist-info-metadata": f"sha256={metadata}",
        },
    )
    assert '"&gt;=3.10,&lt;4"' in (simple / "torch-lms" / "index.html").read_text()
    (link,) = Links(simple / "torch" / "index.html").found.values()
    assert str(link["href"]).startswith(f"../../{TORCH.replace('+', '%2B')}#")
    assert "data-requires-python" not in link  # the fake official wheel names none


@pytest.mark.parametrize("project", ["torch", "torch-lms"])
def test_the_pages_as_json_say_the_same(published: Path, project: str) -> None:
    page = published / "simple" / project
    content = json.loads((page / "index.json").read_text())
    links = Links(page / "index.html").found
    assert content["name"] == project
    assert content["meta"] == {"api-version": "1.1"}
    assert len(content["versions"]) == 1
    assert {file["filename"] for file in content["files"]} == set(links)
    for file in content["files"]:
        link = links[file["filename"]]
        assert f"{file['url']}#sha256={file['hashes']['sha256']}" == link["href"]
        assert f"sha256={file['core-metadata']['sha256']}" == link["data-core-metadata"]
        assert file.get("requires-python") == link.get("data-requires-python")
        assert file["size"] == (published / file["filename"]).stat().st_size
    projects = json.loads((published / "simple" / "index.json").read_text())["projects"]
    assert {"name": project} in projects


def test_each_sidecar_is_the_metadata_that_the_pages_promise(published: Path) -> None:
    for name in (TORCH, SMALL):
        sidecar = (published / f"{name}.metadata").read_bytes()
        with wheelfile.Wheel(published / name) as wheel:
            assert sidecar == wheel.read(f"{wheel.dist_info}/METADATA")
        page = published / "simple" / index_manifest.parse(name)[0] / "index.html"
        assert Links(page).found[name]["data-core-metadata"] == f"sha256={sha256(sidecar)}"


def test_made_twice_it_is_byte_identical(
    lms_wheels: list[Path], published: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    for path in reversed(lms_wheels):
        static.add(again, [path], None)
    static.make(again)
    assert tree(again) == tree(published)


def test_what_is_right_is_left_alone(folder: Path) -> None:
    before = {path: path.stat().st_ino for path in folder.rglob("*")}
    static.make(folder)
    assert {path: path.stat().st_ino for path in folder.rglob("*")} == before


def test_versions_are_sorted_as_versions(tmp_path: Path) -> None:
    for version in ("1.10", "1.9", "1.9rc1"):
        members = {
            f"torch_lms-{version}.dist-info/METADATA": b"Metadata-Version: 2.1\nName: torch-lms\n"
            + f"Version: {version}\n".encode(),
            f"torch_lms-{version}.dist-info/LMS.json": b"{}",
        }
        fake_torch.write_wheel(tmp_path / f"torch_lms-{version}-py3-none-any.whl", members)
    static.add(tmp_path, sorted(tmp_path.glob("*.whl")), None)
    static.make(tmp_path)
    content = json.loads((tmp_path / "simple" / "torch-lms" / "index.json").read_text())
    assert content["versions"] == ["1.9rc1", "1.9", "1.10"]


def test_a_withdrawn_wheel_leaves_nothing_behind(folder: Path) -> None:
    path = folder / "manifest.yaml"
    manifest = yaml.safe_load(path.read_text())
    del manifest["wheels"][SMALL]
    path.write_text(yaml.safe_dump(manifest))
    (folder / SMALL).unlink()
    static.make(folder)
    assert [name for name in tree(folder) if "lms-" in name or "_lms" in name] == []
    assert not (folder / "simple" / "torch-lms").exists()
    static.check(folder)


def test_the_last_wheels_are_withdrawn_by_deleting_their_rows(folder: Path) -> None:
    path = folder / "manifest.yaml"
    text = path.read_text()
    path.write_text(text[: text.index("wheels:")] + "wheels:\n")
    for wheel in folder.glob("*.whl"):
        wheel.unlink()
    static.make(folder)
    assert list((folder / "simple").glob("*/")) == []
    static.check(folder)


def test_a_wheel_can_move_elsewhere_and_back(folder: Path, lms_wheels: list[Path]) -> None:
    before = tree(folder)
    static.add(folder, [folder / SMALL], "https://example.org/v1")
    (folder / SMALL).unlink()
    static.make(folder)
    static.check(folder)
    (link,) = Links(folder / "simple" / "torch-lms" / "index.html").found.values()
    assert str(link["href"]).startswith(f"https://example.org/v1/{SMALL}#sha256=")
    assert not (folder / f"{SMALL}.metadata").exists()
    static.add(folder, [lms_wheels[1]], None)
    static.make(folder)
    assert tree(folder) == before


def test_killed_at_any_moment_every_page_leads_somewhere(
    lms_wheels: list[Path], published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.replace
    for moment in range(100):
        folder = tmp_path / str(moment)
        left = moment

        def replace(self: Path, target: Path) -> Path:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return rename(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", replace)
            patch.setattr(Path, "unlink", lambda self, missing_ok: None)  # killed: cleans nothing
            try:
                static.add(folder, lms_wheels, None)
                static.make(folder)
            except KeyboardInterrupt:
                pass
            else:
                break
        for page in folder.glob("simple/*/index.html"):
            for name, link in Links(page).found.items():
                assert (folder / name).exists(), (moment, link)
                assert (folder / f"{name}.metadata").exists(), (moment, link)
        static.add(folder, lms_wheels, None)
        static.make(folder)
        assert tree(folder) == tree(published)
    assert moment == len(tree(published))  # one rename for each file


def test_the_index_of_this_repository_is_up_to_date() -> None:
    static.check(paths.INDEX)


def replaced(folder: Path) -> None:
    write_small(folder, code="import evil\n")


def removed(folder: Path) -> None:
    (folder / SMALL).unlink()


def unlisted(folder: Path) -> None:
    fake_torch.write_pure_wheel(folder, "stranger", "1.0")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (replaced, f"{SMALL} has sha256 .* manifest.yaml says .*\n *Restore it"),
        (removed, f"{SMALL} is in manifest.yaml without an url, but not in .*\n *Put it there"),
        (unlisted, "stranger-1.0-py3-none-any.whl is in the folder, but not in .*\n *List it with"),
    ],
    ids=["replaced", "removed", "unlisted"],
)
def test_wheels_that_do_not_fit_the_manifest(
    pristine: FakeRelease, folder: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(folder)
    before = tree(folder)
    for arguments in (("--check",), ()):
        result = pristine.lms("index", str(folder), *arguments)
        assert (result.returncode, result.stdout) == (IntegrityError.exit_code, "")
        assert re.search(message, result.stderr)
        assert result.stderr.count("lms: error:") == 1
    assert tree(folder) == before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (f"{SMALL}.metadata", b"damaged"),
        (f"{SMALL}.metadata", None),
        ("simple/torch/index.html", b"damaged"),
        ("simple/index.json", None),
        ("simple/gone/index.html", b"of a project that is no more"),
        ("gone-1.0-py3-none-any.whl.metadata", b"of a wheel that is no more"),
        (".manifest.yaml.abc.part", b"of a run that was killed"),
    ],
)
def test_files_that_are_made_are_checked_and_made_again(
    folder: Path, name: str, content: bytes | None
) -> None:
    good = tree(folder)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    with pytest.raises(IntegrityError, match=rf"(?s){re.escape(name)}.*Run `lms index "):
        static.check(folder)
    static.make(folder)
    assert tree(folder) == good
    static.check(folder)


def test_files_of_others_stay(folder: Path) -> None:
    note = folder / "simple" / "torch" / "note.txt"
    note.write_text("not of an index")
    static.check(folder)
    static.make(folder)
    assert note.exists()


def test_another_wheel_under_a_published_name(folder: Path, tmp_path: Path) -> None:
    before = tree(folder)
    with pytest.raises(IntegrityError, match="What is published stays as it is"):
        static.add(folder, [write_small(tmp_path, code="changed = 1\n")], None)
    assert tree(folder) == before


def official(fake: FakeRelease, folder: Path) -> Path:
    return fake.official


def renamed(fake: FakeRelease, folder: Path) -> Path:
    return Path(shutil.copy(fake.out / TORCH, folder / TORCH.replace("lms1", "lms2")))


def misnamed(fake: FakeRelease, folder: Path) -> Path:
    return Path(shutil.copy(fake.out / TORCH, folder / "torch.whl"))


def cut_short(fake: FakeRelease, folder: Path) -> Path:
    (folder / TORCH).write_bytes((fake.out / TORCH).read_bytes()[:1000])
    return folder / TORCH


@pytest.mark.parametrize(
    ("wheel", "message"),
    [
        (official, "is not an LMS wheel: it has no LMS.json"),
        (renamed, "its METADATA says torch 9.9.9+cu130.lms1"),
        (misnamed, "torch.whl is not a wheel's name"),
        (cut_short, "is not a complete wheel"),
    ],
)
def test_what_cannot_be_added(
    pristine: FakeRelease,
    lms_wheels: list[Path],
    tmp_path: Path,
    wheel: Callable[[FakeRelease, Path], Path],
    message: str,
) -> None:
    folder = tmp_path / "wheels"
    with pytest.raises(WheelError, match=re.escape(message)):
        static.add(folder, [lms_wheels[1], wheel(pristine, tmp_path)], None)
    assert not folder.exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("wheels:", "wheel:"),
        lambda text: text.replace("wheels:", "wheels: ["),
        lambda text: text.replace("sha256: ", "sha256: x", 1),
        lambda text: text.replace("size:", "bytes:", 1),
        lambda text: text.replace(SMALL, "torch_lms.whl"),
        lambda text: "",
    ],
)
def test_a_malformed_manifest(folder: Path, change: Callable[[str], str]) -> None:
    path = folder / "manifest.yaml"
    assert path.read_text() != change(path.read_text())
    path.write_text(change(path.read_text()))
    with pytest.raises(
        LmsError, match=r"(?s)manifest\.yaml is malformed: .+\n.*Undo what was changed"
    ):
        static.make(folder)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--base-url", "https://example.org"), 2, "Name them with --add"),
        (("--online",), 2, "Use it with --check"),
        (("--add", "a.whl", "--base-url", "elsewhere"), 2, "elsewhere is not an URL"),
        (("--add", "a.whl", "--check"), 2, "not allowed with"),
        (("--add", "a.whl"), 7, "a.whl is not a complete wheel"),
        ((), 1, "cannot read the manifest of published wheels"),
    ],
)
def test_command_lines_that_make_no_sense(
    pristine: FakeRelease, tmp_path: Path, arguments: tuple[str, ...], status: int, message: str
) -> None:
    result = pristine.lms("index", str(tmp_path), *arguments)
    assert (result.returncode, result.stdout) == (status, ""), result.stderr
    assert message in result.stderr
    assert tree(tmp_path) == {}


def test_the_command(pristine: FakeRelease, lms_wheels: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "wheels"
    torch, small = (str(shutil.copy(path, tmp_path)) for path in lms_wheels)
    result = pristine.lms("index", str(folder), "--add", torch)
    assert (result.returncode, result.stdout) == (0, f"{folder}/simple\n"), result.stderr
    elsewhere = ("--base-url", "http://127.0.0.1:9")
    result = pristine.lms("index", str(folder), "--add", small, *elsewhere)
    assert (result.returncode, result.stdout) == (0, f"{folder}/simple\n"), result.stderr
    assert f"publish {small} and {SMALL}.metadata in http://127.0.0.1:9" in result.stderr
    assert pristine.lms("index", str(folder), "--check").returncode == 0
    result = pristine.lms("index", str(folder), "--check", "--online")
    assert (result.returncode, result.stdout) == (3, "")
    assert f"{SMALL} is listed, but not to be had" in result.stderr
