"""A series as patches for `git am`: what git makes of them is what the record says."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import fake_torch
import pytest
import yaml
from fake_torch import CUDA_INIT, HEADER, FakeRelease
from lms_cli import paths, releases
from lms_cli.errors import SeriesError, UsageError
from lms_cli.releases import Release
from lms_cli.series import export, git, series
from lms_cli.series.series import Patch, Series
from lms_cli.wheel.wheelfile import Wheel
from range_index import RangeIndex, serving

UPSTREAM = {HEADER: fake_torch.HEADER_TEXT, CUDA_INIT: fake_torch.CUDA_INIT_TEXT}
FORMAT = ("--zero-commit", "--full-index", "--no-signature", "--no-stat", "--no-numbered")
PLAIN_DIFF = "--- a/torch/b.py\n+++ b/torch/b.py\n@@ -1 +1 @@\n-a\n+b\n"
GIT_DIFF = (
    f"diff --git a/torch/a.py b/torch/a.py\nindex {'1' * 40}..{'2' * 40} 100644\n"
    "--- a/torch/a.py\n+++ b/torch/a.py\n@@ -1 +1 @@\n-a\n+b\n"
)


class Repository:
    """A real git repository that holds some upstream files."""

    def __init__(self, folder: Path, texts: dict[str, str]) -> None:
        self.folder = folder
        for name, text in texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        self.git("init", "--quiet")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "Upstream")

    def git(self, *arguments: str) -> str:
        identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
        command = ["git", "-C", str(self.folder), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def am(self, exported: Path) -> None:
        """Apply an export as its readers are told to."""
        order = (exported / "series").read_text().split()
        self.git("am", "--quiet", *(str(exported / name) for name in order))

    def blobs(self) -> dict[str, str]:
        rows = (row.split("\t") for row in self.git("ls-tree", "-r", "HEAD").splitlines())
        return {path: row.split(" ")[2] for row, path in rows}


def release_of(fake: FakeRelease) -> Release:
    return releases.load(fake.patches)[fake_torch.VERSION]


def update(fake: FakeRelease) -> list[str]:
    """Bring the record up to date; names of what was written."""
    with Wheel(fake.official) as official:
        return [path.name for path in export.update(release_of(fake), official.text)]


@pytest.fixture
def index(fake: FakeRelease) -> Iterator[RangeIndex]:
    """The index that the fake release's command sees."""
    with serving(fake.index) as running:
        fake.variables = {"PIP_INDEX_URL": running.url}
        yield running


def test_git_am_makes_what_the_record_says(
    fake: FakeRelease, index: RangeIndex, tmp_path: Path
) -> None:
    result = fake.lms("export", fake_torch.VERSION, "--out", str(fake.out))
    assert (result.returncode, result.stdout) == (0, f"{fake.out}\n"), result.stderr
    repository = Repository(tmp_path / "repository", UPSTREAM)
    before = repository.blobs()
    repository.am(fake.out)
    record = yaml.safe_load((fake.out / "export.yaml").read_text())
    assert record["base"] == {"tag": "v9.9.9", "commit": fake_torch.COMMIT}
    assert {path: row["before"] for path, row in record["changed"].items()} == before
    changed = {path: row["after"] for path, row in record["changed"].items()}
    assert {**changed, **record["added"]} == repository.blobs()
    assert set(record["added"]) == set(fake_torch.NEW_FILES)
    for name, sha256 in record["patches"].items():
        assert hashlib.sha256((fake.out / name).read_bytes()).hexdigest() == sha256
    messages = repository.git("log", "--reverse", "--format=%an %ad %s", "--date=iso").splitlines()
    assert messages[1:] == [
        "PyTorch LMS 1970-01-01 00:00:00 +0000 Add the engine of Large Model Support",
        "PyTorch LMS 1970-01-01 00:00:00 +0000 Hook the storage",
    ]


def test_the_patches_are_what_git_itself_exports(fake: FakeRelease, tmp_path: Path) -> None:
    """New files of every shape too: empty, of one line, without an end of line."""
    for name, text in {"empty": "", "line": "# one\n", "open": "# 1\n# 2", "page": "#\f\n"}.items():
        (fake.patches / "files" / "torch" / "cuda" / f"{name}.py").write_text(text)
    update(fake)
    export.write(release_of(fake), fake.out)
    repository = Repository(tmp_path / "repository", UPSTREAM)
    repository.am(fake.out)
    for commit, name in enumerate(reversed((fake.out / "series").read_text().split())):
        made = repository.git("format-patch", *FORMAT, "--stdout", "-1", f"HEAD~{commit}")
        assert made == (fake.out / name).read_text()


def test_the_same_series_gives_the_same_bytes(fake: FakeRelease) -> None:
    update(fake)
    first, second = fake.root / "1", fake.root / "2"
    for folder in (first, second):
        export.write(release_of(fake), folder)
    assert {path.name for path in first.iterdir()} == {
        "large-model-support.patch",
        "0001-hook.patch",
        "series",
        "export.yaml",
    }
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes()


def test_what_is_up_to_date_is_exported_without_a_network(fake: FakeRelease) -> None:
    update(fake)
    before = {path: path.stat().st_mtime_ns for path in fake.series.iterdir()}
    result = fake.lms("export", fake_torch.VERSION)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{fake.home / 'export' / 'v9.9.9'}\n"
    assert {path: path.stat().st_mtime_ns for path in fake.series.iterdir()} == before


def test_a_series_edited_by_hand_is_recorded_again(fake: FakeRelease, index: RangeIndex) -> None:
    update(fake)
    patch = fake.series / "0001-hook.patch"
    good = patch.read_text()
    patch.write_text(good.replace("return 42;", "return 43;"))
    result = fake.lms("export", fake_torch.VERSION)
    assert result.returncode == 0, result.stderr
    assert f"wrote {patch}" in result.stderr
    after = git.blob(
        fake_torch.HEADER_TEXT.replace(
            "int storage_5();\n", "int storage_5();\ninline int lms_hook() { return 43; }\n"
        )
    )
    assert f"..{after} 100644\n" in patch.read_text()
    assert export.read_record(release_of(fake)).changed[HEADER].after == after


def test_only_what_changes_is_written(fake: FakeRelease) -> None:
    assert update(fake) == ["export.yaml"]  # git wrote the index lines of the patch
    assert update(fake) == []


@pytest.mark.parametrize(
    "index_line",
    [
        pytest.param("", id="none, as in a patch made without git"),
        pytest.param("index 0123456..89abcde 100644\n", id="abbreviated"),
        pytest.param(f"index {'0' * 40}..{'1' * 40} 100644\n", id="wrong"),
    ],
)
def test_index_lines_are_made_right(fake: FakeRelease, index_line: str) -> None:
    patch = fake.series / "0001-hook.patch"
    good = patch.read_text()
    patch.write_text(re.sub(r"^index .*\n", index_line, good, flags=re.MULTILINE))
    assert patch.read_text() != good
    update(fake)
    assert patch.read_text() == good


def test_the_mode_of_an_executable_file_stays(fake: FakeRelease) -> None:
    patch = fake.series / "0001-hook.patch"
    executable = patch.read_text().replace(" 100644\n", " 100755\n")
    patch.write_text(executable)
    update(fake)
    assert patch.read_text() == executable


def test_files_that_no_wheel_has_keep_their_index_lines(fake: FakeRelease, tmp_path: Path) -> None:
    patch = fake_torch.git_patch(tmp_path / "docs", {"docs/a.md": "a\n"}, {"docs/a.md": "b\n"})
    text = fake_torch.PATCH_MESSAGE + patch[patch.index("diff --git ") :]
    (fake.series / "docs.patch").write_text(text)
    (fake.series / "series").write_text("0001-hook.patch\ndocs.patch\n")
    update(fake)
    assert (fake.series / "docs.patch").read_text() == text
    blobs = export.read_record(release_of(fake)).changed["docs/a.md"]
    assert blobs == export.Blobs(git.blob("a\n"), git.blob("b\n"))
    export.write(release_of(fake), fake.out)
    repository = Repository(tmp_path / "repository", {**UPSTREAM, "docs/a.md": "a\n"})
    repository.am(fake.out)
    assert repository.blobs()["docs/a.md"] == blobs.after


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("Title\n\nBody.\n", "a line of three dashes, and a diff", id="only a message"),
        pytest.param(
            f"Title\n---\n{PLAIN_DIFF}",
            "a line of three dashes, and a diff of git",
            id="a diff of another program",
        ),
        pytest.param(
            f"Title\n---\n{GIT_DIFF}{PLAIN_DIFF}",
            "does not have a line `diff --git` for each file",
            id="partly of git",
        ),
        pytest.param(
            f"Title\n---\n{GIT_DIFF.replace('index 1', 'index ')}",
            r"no index line with complete hashes for torch/a\.py",
            id="abbreviated hashes",
        ),
    ],
)
def test_what_cannot_be_exported(fake: FakeRelease, text: str, message: str) -> None:
    loaded = Series({}, (Patch("odd.patch", text),))
    with pytest.raises(SeriesError, match=message):
        export.record(release_of(fake), loaded)


def test_two_patches_of_one_file_are_refused(fake: FakeRelease) -> None:
    (patch,) = series.load(release_of(fake)).patches
    loaded = Series({}, (patch, Patch("again.patch", patch.text)))
    with pytest.raises(SeriesError, match=f"{HEADER} is changed by two patches, 0001-hook.patch"):
        export.record(release_of(fake), loaded)


def test_a_folder_of_others_is_left_alone(fake: FakeRelease) -> None:
    update(fake)
    export.write(release_of(fake), fake.out)
    export.write(release_of(fake), fake.out)  # an earlier export may be replaced
    (fake.out / "notes.txt").write_text("mine\n")
    with pytest.raises(UsageError, match=r"files that are not of an export: notes\.txt"):
        export.write(release_of(fake), fake.out)
    assert (fake.out / "notes.txt").read_text() == "mine\n"
    with pytest.raises(UsageError, match="is no export"):
        export.write(release_of(fake), fake.out / "notes.txt")
    (fake.root / "documents").mkdir()
    (fake.root / "documents" / "letter.patch").write_text("mine\n")
    with pytest.raises(UsageError, match="is no export"):
        export.write(release_of(fake), fake.root / "documents")


def test_a_wheel_of_another_commit_is_not_recorded(fake: FakeRelease, index: RangeIndex) -> None:
    fake.pin(commit="f" * 40)
    result = fake.lms("export", fake_torch.VERSION)
    assert result.returncode == 7
    assert f"git_version in torch/version.py is {fake_torch.COMMIT}" in result.stderr
    assert not (fake.series / "export.yaml").exists()


@pytest.mark.parametrize("version", releases.load(paths.PATCHES))
def test_the_committed_record_is_written_by_this_code(version: str) -> None:
    """What `lms export` would write offline from the index lines is what is committed."""
    release = releases.load(paths.PATCHES)[version]
    text = export.record(release, series.load(release)).to_yaml()
    assert text == (release.series / "export.yaml").read_text()
