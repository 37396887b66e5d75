"""`lms rebase`: a new release from wheels on disk, with and without work for a person."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import fake_torch
import pytest
from fake_torch import CUDA_INIT, HEADER, HEADER_TEXT, NEW, VERSION, FakeRelease, successor
from lms_cli import paths, releases
from lms_cli.series import git, rebase, series, source_layout

MEMBER = source_layout.member(HEADER)
COMPAT = "aten/src/ATen/cuda/detail/LMSCompat.h"
ALLOCATOR = "torch/include/c10/cuda/CUDACachingAllocator.h"


@pytest.fixture
def old(lockable: FakeRelease) -> FakeRelease:
    """A release with a series, whose packages uv can lock."""
    lockable.keep(lockable.official)
    return lockable


def start(fake: FakeRelease, wheel: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return fake.lms("rebase", NEW, "--wheel", str(wheel), *more)


def test_a_release_whose_hunks_apply_needs_nobody(old: FakeRelease) -> None:
    wheel = successor(old, {MEMBER: source_layout.guarded("// one more line\n" + HEADER_TEXT)})
    before = (old.patches / releases.FILE_NAME).read_text()
    result = start(old, wheel, "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert [hunk["outcome"] for hunk in report["hunks"]] == ["moved", "clean"]
    assert (report["from"], report["problem"]) == (VERSION, "")
    # The new release is complete: it builds, its export is recorded, and its patches name the
    # right blobs.
    assert old.lms("lint", NEW).returncode == 0
    built = old.lms("build", NEW, "--out", str(old.out))
    assert built.returncode == 0, built.stderr
    patch = (old.patches / f"v{NEW}" / "0001-hook.patch").read_text()
    assert f"index {git.blob('// one more line' + chr(10) + HEADER_TEXT)}.." in patch
    assert patch.startswith((old.series / "0001-hook.patch").read_text().partition("diff")[0])
    assert (old.patches / releases.FILE_NAME).read_text().startswith(before)
    assert not (old.home / "rebase" / NEW).exists()


def test_a_conflict_is_mended_by_hand_and_gone_on_with(old: FakeRelease) -> None:
    theirs = HEADER_TEXT.replace("int storage_5();", "long storage_5();")
    wheel = successor(old, {MEMBER: source_layout.guarded(theirs)})
    result = start(old, wheel)
    assert result.returncode == 5
    assert f"1 file(s) have to be mended first: {HEADER}" in result.stderr
    assert "conflict" in result.stdout
    assert "long storage_5();" in result.stdout
    assert not (old.patches / f"v{NEW}").exists()
    again = start(old, wheel)  # not by accident a second time
    assert again.returncode == 2
    assert "--continue" in again.stderr
    mended = old.home / "rebase" / NEW / "tree" / HEADER
    mended.write_text(theirs + "inline int lms_hook() { return 42; }\n")
    result = old.lms("rebase", NEW, "--continue")
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    loaded = series.load(releases.find(NEW, old.patches))
    changed = series.apply(loaded, {CUDA_INIT: fake_torch.CUDA_INIT_TEXT, MEMBER: theirs}.get)
    assert changed.changed[MEMBER] == mended_text(theirs)


def mended_text(theirs: str) -> str:
    return theirs + "inline int lms_hook() { return 42; }\n"


def test_a_file_that_is_gone_names_what_to_do(old: FakeRelease) -> None:
    wheel = successor(old, {CUDA_INIT: None, "torch/cuda/api.py": fake_torch.CUDA_INIT_TEXT})
    result = start(old, wheel)
    assert result.returncode == 5
    assert f"file gone         {CUDA_INIT}:" in result.stdout
    tree = old.home / "rebase" / NEW / "tree"
    (tree / "torch" / "cuda").mkdir(parents=True, exist_ok=True)
    (tree / CUDA_INIT).write_text("")
    (tree / "torch/cuda/api.py").write_text(fake_torch.CUDA_INIT_TEXT + "\n\nLMS = True\n")
    result = old.lms("rebase", NEW, "--continue")
    assert result.returncode == 0, result.stderr
    patch = (old.patches / f"v{NEW}" / "0001-hook.patch").read_text()
    assert "+++ b/torch/cuda/api.py" in patch
    assert CUDA_INIT not in patch


def test_a_change_of_the_allocator_stops_before_anything_is_published(old: FakeRelease) -> None:
    interface = (
        "class C10_CUDA_API CUDAAllocator : public c10::Allocator {\n public:\n"
        "  virtual void known(int a) = 0;\n"
        "  // new in this release\n"
        "  virtual void unheard_of(\n      int device) {}\n"
        "  virtual ~CUDAAllocator();\n};\n"
    )
    compat = old.patches / "files" / COMPAT
    compat.write_text("#pragma once\n\nvoid known(int a) override;\n")
    result = start(old, successor(old, {ALLOCATOR: source_layout.guarded(interface)}))
    assert result.returncode == 5
    assert "virtual void unheard_of( int device)" in result.stderr
    assert "known(int a)" not in result.stderr
    compat.write_text(compat.read_text() + "void unheard_of(int device) override;\n")
    result = old.lms("rebase", NEW, "--continue")
    assert result.returncode == 0, result.stderr


def test_what_does_not_compile_is_mended_in_the_engine(old: FakeRelease) -> None:
    theirs = HEADER_TEXT + "#ifndef READY\n#error another interface\n#endif\n"
    result = start(old, successor(old, {MEMBER: source_layout.guarded(theirs)}))
    assert result.returncode == 6
    assert "another interface" in result.stderr
    assert "--continue" in result.stderr
    source = old.patches / "files" / fake_torch.NEW_SOURCE
    source.write_text("#define READY\n" + source.read_text())
    assert old.lms("rebase", NEW, "--continue").returncode == 0


def test_giving_up_keeps_what_a_person_wrote(old: FakeRelease) -> None:
    theirs = HEADER_TEXT.replace("int storage_5();", "long storage_5();")
    wheel = successor(old, {MEMBER: source_layout.guarded(theirs)})
    folder = old.home / "rebase"
    start(old, wheel)
    assert old.lms("rebase", NEW, "--abort").returncode == 0
    assert list(folder.glob("*")) == []
    start(old, wheel)
    (folder / NEW / "tree" / HEADER).write_text("hours of work\n")
    result = old.lms("rebase", NEW, "--abort")
    assert result.returncode == 0
    assert str(folder / f"{NEW}.aborted-1") in result.stderr
    kept = folder / f"{NEW}.aborted-1" / "tree" / HEADER
    assert kept.read_text() == "hours of work\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((VERSION,), 2, f"there is a series for PyTorch {VERSION} already"),
        ((NEW, "--continue"), 2, f"no rebase to PyTorch {NEW} is under way"),
        ((NEW, "--abort"), 2, f"no rebase to PyTorch {NEW} is under way"),
        ((NEW, "--from", "1.5.0"), 2, "there is no LMS series for PyTorch 1.5.0"),
        (("banana",), 2, "banana is not a version of PyTorch"),
        ((NEW, "--wheel", "torch-9.10.0-none.whl"), 2, "torch-9.10.0-none.whl cannot be used"),
    ],
)
def test_bad_input(old: FakeRelease, arguments: tuple[str, ...], code: int, message: str) -> None:
    result = old.lms("rebase", *arguments)
    assert result.returncode == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_killed_rebase_leaves_nothing_half_written(old: FakeRelease) -> None:
    """A wheel of another commit for another machine: the state is not there until all is ported."""
    wheel = successor(old, {})
    other = wheel.with_name(wheel.name.replace("x86_64", "aarch64"))
    members = fake_torch.official_members(old.root)
    members["torch/version.py"] = fake_torch.VERSION_PY.replace("0123", "9999").encode()
    fake_torch.write_wheel(other, members)
    result = start(old, wheel, "--wheel", str(other))
    assert result.returncode == 4
    assert "are of different commits" in result.stderr
    assert not (old.home / "rebase" / NEW).exists()


def test_the_release_to_port_from() -> None:
    listed = list(releases.load(paths.PATCHES))
    assert rebase.nearest("99.0.0", paths.PATCHES).version == listed[-1]
    assert rebase.nearest(f"{listed[-1]}.post1", paths.PATCHES).version == listed[-1]
    assert rebase.nearest("1.0.0", paths.PATCHES).version == listed[0]
