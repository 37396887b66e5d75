"""Applying a series: exactly, or not at all with a report of every file."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import fake_torch
import pytest
from fake_torch import FakeRelease
from lms_cli.errors import SeriesError
from lms_cli.series import series, source_layout
from lms_cli.series.series import Patch, Series

BEFORE = "".join(f"line {n}\n" for n in range(1, 31))
HEADER = "c10/core/Some.h"
PYTHON = "torch/some.py"


def patch_of(folder: Path, after: dict[str, str], before: dict[str, str] | None = None) -> Patch:
    base = before or dict.fromkeys(after, BEFORE)
    return Patch("0001-change.patch", fake_torch.git_patch(folder / "repository", base, after))


def apply(patch: Patch, wheel: dict[str, str]) -> series.Applied:
    return series.apply(Series({}, (patch,)), wheel.get)


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(BEFORE.replace("line 5\n", "line five\n"), id="replace"),
        pytest.param(BEFORE.replace("line 5\n", ""), id="remove"),
        pytest.param("new first\n" + BEFORE, id="insert at the start"),
        pytest.param(BEFORE + "new last\n", id="append"),
        pytest.param(
            BEFORE.replace("line 3\n", "3\n3\n").replace("line 28\n", "28\n"), id="two hunks"
        ),
    ],
)
def test_what_git_made_gives_what_git_had(tmp_path: Path, after: str) -> None:
    applied = apply(patch_of(tmp_path, {PYTHON: after}), {PYTHON: BEFORE})
    assert applied.changed == {PYTHON: after}


def test_a_guarded_header_stays_guarded(tmp_path: Path) -> None:
    after = BEFORE.replace("line 9\n", "line nine\n")
    member = "torch/include/c10/core/Some.h"
    applied = apply(patch_of(tmp_path, {HEADER: after}), {member: source_layout.guarded(BEFORE)})
    assert applied.changed == {member: source_layout.guarded(after)}


def test_a_header_without_guard_stays_so(tmp_path: Path) -> None:
    after = BEFORE.replace("line 9\n", "line nine\n")
    member = "torch/include/c10/core/Some.h"
    assert apply(patch_of(tmp_path, {HEADER: after}), {member: BEFORE}).changed == {member: after}


def test_a_hunk_that_moved_by_one_line_is_refused(tmp_path: Path) -> None:
    """git itself would find the new place: the control shows that it is we who refuse."""
    patch = patch_of(tmp_path, {PYTHON: BEFORE.replace("line 9\n", "line nine\n")})
    moved = "one more line\n" + BEFORE
    checkout = tmp_path / "moved"
    (checkout / "torch").mkdir(parents=True)
    (checkout / PYTHON).write_text(moved)
    subprocess.run(["git", "apply", "-"], cwd=checkout, input=patch.text, text=True, check=True)
    with pytest.raises(SeriesError, match=re.escape("hunk at line 6 does not fit")):
        apply(patch, {PYTHON: moved})


def test_changed_context_is_refused(tmp_path: Path) -> None:
    """No fuzz: even the outermost context line counts."""
    patch = patch_of(tmp_path, {PYTHON: BEFORE.replace("line 9\n", "line nine\n")})
    with pytest.raises(SeriesError, match="hunk at line 6"):
        apply(patch, {PYTHON: BEFORE.replace("line 6\n", "line six\n")})


def test_the_report_names_every_file_with_expected_and_found_lines(tmp_path: Path) -> None:
    after = BEFORE.replace("line 9\n", "line nine\n")
    patch = patch_of(tmp_path, {PYTHON: after, HEADER: after, "torch/gone.py": after})
    wheel = {
        PYTHON: BEFORE.replace("line 9\n", "line 9 # upstream changed it\n"),
        "torch/include/c10/core/Some.h": source_layout.guarded("line 1\n"),
    }
    with pytest.raises(SeriesError) as raised:
        apply(patch, wheel)
    report = str(raised.value)
    assert "3 file(s) differ" in report
    assert "torch/some.py (0001-change.patch):" in report
    assert "9: expected 'line 9'\n    9: found    'line 9 # upstream changed it'" in report
    assert "c10/core/Some.h (0001-change.patch):" in report
    assert "6: found    the end of the file" in report
    assert "torch/gone.py (0001-change.patch): the release does not have this file" in report


def test_later_patches_see_what_earlier_ones_did(tmp_path: Path) -> None:
    middle = BEFORE.replace("line 9\n", "line nine\nline nine and a half\n")
    last = middle.replace("line nine and a half\n", "9.5\n")
    first = patch_of(tmp_path / "1", {PYTHON: middle})
    second = patch_of(tmp_path / "2", {PYTHON: last}, {PYTHON: middle})
    applied = series.apply(Series({}, (first, second)), {PYTHON: BEFORE}.get)
    assert applied.changed == {PYTHON: last}


def test_a_patch_may_not_add_files(tmp_path: Path) -> None:
    patch = patch_of(tmp_path, {PYTHON: BEFORE, "torch/new.py": "new\n"}, {PYTHON: BEFORE})
    with pytest.raises(SeriesError, match="New files belong in patches/files/"):
        apply(patch, {PYTHON: BEFORE})


def test_what_is_no_patch(tmp_path: Path) -> None:
    with pytest.raises(SeriesError, match="changes nothing"):
        apply(Patch("0001-empty.patch", "Only words.\n"), {})


def test_a_new_file_that_upstream_has_too() -> None:
    with pytest.raises(SeriesError, match="upstream has it too"):
        series.apply(Series({PYTHON: "ours\n"}, ()), {PYTHON: "upstream's\n"}.get)


@pytest.mark.parametrize(
    ("upstream", "kind"),
    [
        ("aten/src/ATen/cuda/LargeModelSupport.h", source_layout.Kind.HEADER),
        ("c10/core/StorageImpl.h", source_layout.Kind.HEADER),
        ("torch/csrc/Device.h", source_layout.Kind.HEADER),
        ("torch/cuda/lms.py", source_layout.Kind.PYTHON),
        ("torch/_C/__init__.pyi", source_layout.Kind.PYTHON),
        ("aten/src/ATen/cuda/detail/LargeModelSupport.cpp", source_layout.Kind.COMPILED),
        ("test/test_cuda_lms.py", source_layout.Kind.ABSENT),
    ],
)
def test_where_files_belong(upstream: str, kind: source_layout.Kind) -> None:
    assert source_layout.kind(upstream) is kind


@pytest.mark.parametrize("upstream", ["CMakeLists.txt", "c10/core/Storage.cpp", "torch/csrc/x.cpp"])
def test_places_that_a_graft_cannot_serve(upstream: str) -> None:
    with pytest.raises(SeriesError, match="has no place in a wheel"):
        source_layout.kind(upstream)


@pytest.mark.parametrize(
    "order",
    [
        pytest.param("", id="a patch is not listed"),
        pytest.param("0001-hook.patch\n0002-more.patch\n", id="a listed patch is missing"),
        pytest.param("0001-hook.patch\n0001-hook.patch\n", id="a patch is listed twice"),
    ],
)
def test_the_order_file_and_the_folder_agree(fake: FakeRelease, order: str) -> None:
    (fake.series / "series").write_text(order)
    result = fake.build()
    assert result.returncode == 5
    assert "does not list each patch of its folder exactly once: 000" in result.stderr
