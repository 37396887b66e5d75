"""Each check of `lms verify` fails when what it checks is broken, and only then."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import fake_torch
import pytest
from fake_torch import FakeRelease

DIST_INFO = f"torch-{fake_torch.VERSION}+{fake_torch.LABEL}.dist-info"
Members = dict[str, bytes]


def members_of(wheel: Path) -> Members:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/RECORD")]
        return {name: archive.read(name) for name in names}


def failed_checks(output: str) -> set[str]:
    lines = [line.strip() for line in output.splitlines()]
    return {line[4:].split(":")[0].strip() for line in lines if line.startswith("FAIL")}


@pytest.fixture
def wheel(pristine: FakeRelease, tmp_path: Path) -> Path:
    """A copy of the good wheel, to break."""
    return Path(shutil.copy(pristine.out / fake_torch.LMS_NAME, tmp_path))


def test_a_good_wheel_passes(pristine: FakeRelease, wheel: Path) -> None:
    result = pristine.lms("verify", str(wheel))
    assert result.returncode == 0, result.stdout + result.stderr
    assert failed_checks(result.stdout) == set()
    assert "pass  untouched members" in result.stdout
    assert "libtorch_cpu.so" in result.stdout  # DT_NEEDED is printed


def change(name: str, replace: Callable[[bytes], bytes]) -> Callable[[Members], None]:
    def apply(members: Members) -> None:
        assert members[name] != replace(members[name])
        members[name] = replace(members[name])

    return apply


def drop(name: str) -> Callable[[Members], None]:
    def apply(members: Members) -> None:
        del members[name]

    return apply


def add(name: str) -> Callable[[Members], None]:
    def apply(members: Members) -> None:
        members[name] = b"# added\n"

    return apply


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        pytest.param(
            change("torch/untouched.py", lambda old: old + b"\n"),
            {"untouched members", "RECORD"},
            id="an upstream member has other content",
        ),
        pytest.param(
            drop("torch/untouched.py"), {"untouched members"}, id="an upstream member is missing"
        ),
        pytest.param(
            add("torch/more.py"), {"untouched members", "RECORD"}, id="a member nobody listed"
        ),
        pytest.param(
            change("torch/cuda/lms.py", lambda old: old + b"\n"),
            {"series"},
            id="our Python file is not the series'",
        ),
        pytest.param(
            change("torch/include/c10/core/Storage.h", lambda old: old.replace(b"42", b"43")),
            {"series"},
            id="a patched header is not the series'",
        ),
        pytest.param(
            change("torch/version.py", lambda old: old.replace(b".lms1", b"")),
            {"label"},
            id="version.py lacks the label",
        ),
        pytest.param(
            change("torch/version.py", lambda old: old.replace(b"0123", b"3210")),
            {"label"},
            id="another commit",
        ),
        pytest.param(
            change(f"{DIST_INFO}/METADATA", lambda old: old.replace(b"+cu130.lms1", b"", 1)),
            {"label"},
            id="METADATA lacks the label",
        ),
        pytest.param(
            change(f"{DIST_INFO}/WHEEL", lambda old: old.replace(b"_2_28_", b"_2_17_")),
            {"label"},
            id="WHEEL has another tag than the name",
        ),
        pytest.param(
            change(f"{DIST_INFO}/METADATA", lambda old: old.replace(b">=1", b">=2")),
            {"label", "requirements"},
            id="a requirement that the lock does not meet",
        ),
        pytest.param(
            change(
                f"{DIST_INFO}/LMS.json",
                lambda old: old.replace(b' "torch/version.py"', b' "torch/untouched.py"'),
            ),
            {"untouched members", "series", "RECORD"},
            id="the manifest claims another member",
        ),
    ],
)
def test_a_changed_member_is_found(
    pristine: FakeRelease, wheel: Path, damage: Callable[[Members], None], expected: set[str]
) -> None:
    members = members_of(wheel)
    damage(members)
    fake_torch.write_wheel(wheel, members)  # RECORD is consistent with the damage
    result = pristine.lms("verify", str(wheel))
    assert result.returncode == 8, result.stdout + result.stderr
    assert failed_checks(result.stdout) == expected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("torch/untouched.py,sha256=", "torch/untouched.py,sha256=x", id="wrong hash"),
        pytest.param(
            "torch/cuda/lms.py,sha256=", "torch/cuda/lms.py,sha256=x", id="wrong hash of ours"
        ),
        pytest.param("torch/untouched.py,", "torch/unknown.py,", id="wrong name"),
        pytest.param("RECORD,,", "RECORD,sha256=x,1", id="a hash of itself"),
    ],
)
def test_a_wrong_record_is_found(pristine: FakeRelease, wheel: Path, old: str, new: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        record = archive.read(f"{DIST_INFO}/RECORD").decode()
    assert old in record
    fake_torch.write_wheel(wheel, members_of(wheel), record.replace(old, new))
    result = pristine.lms("verify", str(wheel))
    assert (result.returncode, failed_checks(result.stdout)) == (8, {"RECORD"})


def test_a_damaged_byte_is_found(pristine: FakeRelease, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = archive.getinfo("torch/untouched.py")
    content = bytearray(wheel.read_bytes())
    content[info.header_offset + 30 + len(info.filename) + info.compress_size // 2] ^= 0xFF
    wheel.write_bytes(content)
    result = pristine.lms("verify", str(wheel))
    assert (result.returncode, failed_checks(result.stdout)) == (8, {"untouched members"})


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda content: content + b"more", id="bytes after the end"),
        pytest.param(lambda content: b"more" + content, id="bytes before the start"),
    ],
)
def test_a_loose_zip_file_is_found(
    pristine: FakeRelease, wheel: Path, damage: Callable[[bytes], bytes]
) -> None:
    wheel.write_bytes(damage(wheel.read_bytes()))
    result = pristine.lms("verify", str(wheel))
    assert result.returncode == 8, result.stdout + result.stderr
    assert "zip structure" in failed_checks(result.stdout)


def test_a_local_header_that_disagrees_is_found(pristine: FakeRelease, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = archive.getinfo("torch/untouched.py")
    content = bytearray(wheel.read_bytes())
    content[info.header_offset + 14] ^= 0xFF  # the CRC in the local header
    wheel.write_bytes(content)
    result = pristine.lms("verify", str(wheel))
    assert (result.returncode, failed_checks(result.stdout)) == (8, {"zip structure"})


def test_an_undefined_symbol_is_found(fake: FakeRelease) -> None:
    """The wheel is not even published: building verifies."""
    source = fake.patches / "files" / fake_torch.NEW_SOURCE
    source.write_text(
        source.read_text()
        .replace("int upstream();", "int upstream(int);")
        .replace("upstream()", "upstream(1)")
    )
    result = fake.build()
    assert result.returncode == 8, result.stderr
    assert "_Z8upstreami is provided by nothing in libc10.so" in result.stderr
    assert list(fake.out.glob("*.whl")) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(lambda content: content[:-200], "is not a complete wheel", id="truncated"),
        pytest.param(lambda content: b"", "is not a complete wheel", id="empty"),
    ],
)
def test_what_is_no_wheel(
    pristine: FakeRelease, wheel: Path, content: Callable[[bytes], bytes], message: str
) -> None:
    wheel.write_bytes(content(wheel.read_bytes()))
    result = pristine.lms("verify", str(wheel))
    assert result.returncode == 7
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_an_official_wheel_is_not_ours(pristine: FakeRelease) -> None:
    result = pristine.lms("verify", str(pristine.official))
    assert result.returncode == 7
    assert "is not an LMS wheel" in result.stderr
