"""Each check of a series fails when the official wheels are not what it is made for."""

from __future__ import annotations

import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import fake_torch
import pytest
from fake_torch import ANOTHER_NAME, ARM_NAME, CUDA_INIT, HEADER, FakeRelease
from lms_cli import releases
from lms_cli.series import export
from lms_cli.wheel.wheelfile import Wheel
from range_index import serving

Edit = Callable[[dict[str, bytes]], None]


@pytest.fixture
def series(fake: FakeRelease) -> Iterator[FakeRelease]:
    """A fake release with three wheels on an index, and its record up to date."""
    with Wheel(fake.official) as official:
        export.update(releases.load(fake.patches)[fake_torch.VERSION], official.text)
    for name in (ANOTHER_NAME, ARM_NAME):
        wheel = shutil.copy(fake.official, fake.index / name)
        edit(wheel, add("torch/lib/libtorch_python.so", name.encode()))
    edit(wheel, add("torch/include/ATen/Config.h", b"// of that machine\n"))
    with serving(fake.index) as running:
        fake.variables = {"PIP_INDEX_URL": running.url}
        yield fake


def pin(fake: FakeRelease) -> None:
    """Pin all wheels as they are."""
    fake.pin()
    fake.pin_another(ANOTHER_NAME)
    fake.pin_another(ARM_NAME)


def edit(wheel: Path, change: Edit) -> None:
    """Write a wheel anew with other members."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/RECORD")]
        members = {name: archive.read(name) for name in names}
    change(members)
    fake_torch.write_wheel(wheel, members)


def add(name: str, content: bytes) -> Edit:
    return lambda members: members.update({name: members.get(name, b"") + content})


def replace(name: str, old: bytes, new: bytes) -> Edit:
    def apply(members: dict[str, bytes]) -> None:
        assert old in members[name]
        members[name] = members[name].replace(old, new)

    return apply


def outcomes(output: str) -> dict[str, str]:
    """pass, FAIL or skip by check."""
    found = re.findall(r"^  (pass|FAIL|skip)  (.+?):", output, re.MULTILINE)
    return {name: outcome for outcome, name in found}


GOOD = dict.fromkeys(("base", "hunks", "allocator", "official wheels", "hashes", "git am"), "pass")


def until(failing: str) -> dict[str, str]:
    """The outcomes if one check fails, which ends it."""
    names = list(GOOD)
    return {name: "pass" for name in names[: names.index(failing)]} | {failing: "FAIL"}


@pytest.mark.parametrize("arguments", [("9.9.9",), ()])
def test_a_good_series_passes(series: FakeRelease, arguments: tuple[str, ...]) -> None:
    pin(series)
    result = series.lms("verify", *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    assert outcomes(result.stdout) == GOOD
    assert "3 have the same headers and the same 3 touched files" in result.stdout
    assert "git am: 2 patches apply and give 5 files" in result.stdout


@pytest.mark.parametrize(
    ("change", "failing", "message"),
    [
        pytest.param(
            replace("torch/version.py", fake_torch.COMMIT.encode(), b"f" * 40),
            "base",
            "git_version in torch/version.py is ffff",
            id="another commit",
        ),
        pytest.param(
            replace("torch/version.py", b"'13.0'", b"'12.8'"),
            "base",
            "cuda in torch/version.py is 12.8",
            id="another CUDA",
        ),
        pytest.param(
            replace(f"torch/include/{HEADER}", b"storage_4()", b"storage_four()"),
            "hunks",
            "expected 'int storage_4();'",
            id="a hunk does not fit",
        ),
        pytest.param(
            add("torch/cuda/lms.py", b""), "hunks", "upstream has it too", id="upstream's file"
        ),
        pytest.param(
            add(
                "torch/include/c10/cuda/CUDACachingAllocator.h",
                b"class CUDAAllocator {\n  virtual void unheard_of(int device) {}\n};\n",
            ),
            "allocator",
            "virtual void unheard_of(int device)",
            id="a function of the allocator with a default body",
        ),
        pytest.param(
            replace(f"torch/include/{HEADER}", b"storage_0()", b"storage_none()"),
            "hashes",
            f"{HEADER} has other hashes",
            id="a line that no hunk has",
        ),
    ],
)
def test_what_does_not_fit_the_official_wheels(
    series: FakeRelease, change: Edit, failing: str, message: str
) -> None:
    for name in (fake_torch.WHEEL_NAME, ANOTHER_NAME, ARM_NAME):
        edit(series.index / name, change)
    pin(series)
    result = series.lms("verify", "9.9.9")
    assert result.returncode == 8, result.stdout + result.stderr
    assert outcomes(result.stdout) == until(failing)
    assert message in result.stdout


@pytest.mark.parametrize(
    ("wheel", "name", "matters"),
    [
        (ANOTHER_NAME, f"torch/include/{HEADER}", True),
        (ANOTHER_NAME, "torch/include/ATen/Config.h", True),
        (ANOTHER_NAME, CUDA_INIT, True),
        (ANOTHER_NAME, "torch/version.py", True),
        (ANOTHER_NAME, "torch/untouched.py", False),
        (ANOTHER_NAME, "torch/lib/libtorch_cpu.so", False),
        (ARM_NAME, f"torch/include/{HEADER}", True),
        (ARM_NAME, CUDA_INIT, True),
        (ARM_NAME, "torch/version.py", True),
    ],
)
def test_the_wheels_of_a_release_must_agree(
    series: FakeRelease, wheel: str, name: str, matters: bool
) -> None:
    """In what the series touches, and on one machine in all headers."""
    edit(series.index / wheel, add(name, b"\n"))
    pin(series)
    result = series.lms("verify", "9.9.9")
    assert outcomes(result.stdout) == (until("official wheels") if matters else GOOD)
    expected = f"{wheel} has another {name} than {fake_torch.WHEEL_NAME}"
    assert (expected in result.stdout) == matters
    assert result.returncode == (8 if matters else 0)


def test_a_stale_record_is_found(series: FakeRelease) -> None:
    pin(series)
    patch = series.series / "0001-hook.patch"
    patch.write_text(patch.read_text().replace("return 42;", "return 43;"))
    result = series.lms("verify", "9.9.9")
    assert outcomes(result.stdout) == until("hashes")
    assert "0001-hook.patch was changed since" in result.stdout


@pytest.mark.parametrize(
    ("hunk", "message"),
    [
        pytest.param(
            r"@@ -8 +8,2 @@\n-\1+\1+\2",
            "0001-hook.patch does not apply: git am failed: ",
            id="refused",
        ),
        pytest.param(
            r"@@ -8,0 +9 @@\n+\2",
            f"{HEADER} is not what export.yaml says",
            id="applied in another place",
        ),
    ],
)
def test_what_git_am_makes_of_it_counts(series: FakeRelease, hunk: str, message: str) -> None:
    """We know where a hunk without context belongs; git does not."""
    pin(series)
    patch = series.series / "0001-hook.patch"
    pattern = r"^@@ .*@@.*\n(?: .*\n)+ (.*storage_5.*\n)\+(inline .*\n)(?: .*\n)+"
    text, count = re.subn(pattern, hunk, patch.read_text(), flags=re.MULTILINE)
    assert count == 1
    patch.write_text(text)
    with Wheel(series.official) as official:
        export.update(releases.load(series.patches)[fake_torch.VERSION], official.text)
    result = series.lms("verify", "9.9.9")
    assert outcomes(result.stdout) == until("git am")
    assert message in result.stdout


def test_hunks_that_only_a_source_tree_has(series: FakeRelease, tmp_path: Path) -> None:
    """One patch has nothing else, one has a hunk that can be tried too."""
    pin(series)
    docs = fake_torch.git_patch(tmp_path / "1", {"docs/a.md": "a\n"}, {"docs/a.md": "b\n"})
    test = fake_torch.git_patch(tmp_path / "2", {"test/a.py": "a\n"}, {"test/a.py": "b\n"})
    hook = series.series / "0001-hook.patch"
    hook.write_text(hook.read_text() + test[test.index("diff --git ") :])
    text = fake_torch.PATCH_MESSAGE + docs[docs.index("diff --git ") :]
    (series.series / "docs.patch").write_text(text)
    (series.series / "series").write_text("0001-hook.patch\ndocs.patch\n")
    with Wheel(series.official) as official:
        export.update(releases.load(series.patches)[fake_torch.VERSION], official.text)
    result = series.lms("verify", "9.9.9")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "git am: 2 patches apply and give 5 files" in result.stdout


def test_the_repository_of_a_hook_is_left_alone(series: FakeRelease, tmp_path: Path) -> None:
    pin(series)
    mine = tmp_path / "mine"
    subprocess.run(["git", "init", "--quiet", mine], check=True)
    before = sorted(mine.rglob("*"))
    result = series.lms("verify", "9.9.9", GIT_DIR=str(mine / ".git"), GIT_WORK_TREE=str(mine))
    assert result.returncode == 0, result.stdout + result.stderr
    assert sorted(mine.rglob("*")) == before


def test_wheels_that_were_built_are_verified_too(series: FakeRelease) -> None:
    series.variables["PIP_NO_INDEX"] = "1"
    result = series.lms("build", "9.9.9")
    assert result.returncode == 0, result.stderr
    result = series.lms("verify", "9.9.9")
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{series.home / 'wheels' / fake_torch.LMS_NAME}\n" in result.stdout
    assert outcomes(result.stdout).keys() > GOOD.keys() | {"untouched members", "RECORD"}


def test_an_index_with_another_wheel(series: FakeRelease) -> None:
    pin(series)
    edit(series.index / ANOTHER_NAME, add("torch/more.py", b"\n"))
    result = series.lms("verify", "9.9.9")
    assert result.returncode == 3
    assert outcomes(result.stdout) == dict.fromkeys(("base", "hunks", "allocator"), "pass")
    assert f"the index lists no {ANOTHER_NAME} with sha256" in result.stderr


def test_a_release_that_does_not_exist(series: FakeRelease) -> None:
    result = series.lms("verify", "9.9.8")
    assert result.returncode == 2
    assert "Supported releases: 9.9.9." in result.stderr
