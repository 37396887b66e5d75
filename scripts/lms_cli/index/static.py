"""The package index of a folder of wheels: static files, for any web server and for `file:`.

The manifest is the truth. Wheels are checked against it, and everything else is made from both: the
pages in `simple/`, and beside each wheel its METADATA.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from lms_cli import files, progress
from lms_cli.errors import IntegrityError, NetworkError
from lms_cli.index import manifest, remote, rendering
from lms_cli.index.manifest import FILE_NAME, SIDECAR, Published
from lms_cli.wheel.wheelfile import Wheel

PAGES = "simple"
# Where only `make` puts files, and what killed runs leave.
MADE = (
    f"*.whl{SIDECAR}",
    f"{PAGES}/**/index.html",
    f"{PAGES}/**/index.json",
    ".*.part",
    f"{PAGES}/**/.*.part",
)


def add(folder: Path, paths: list[Path], base_url: str | None) -> None:
    """List wheels in a folder's manifest, all or none.

    Args:
        folder: of the index; it gets copies of the wheels unless there is a `base_url`.
        paths: the wheels.
        base_url: where they are published; each then gets its sidecar beside it, to be published
            with it.

    Raises:
        WheelError: a file is not a wheel of LMS.
        IntegrityError: another wheel is listed under the same name.
    """
    listed = manifest.load(folder) if (folder / FILE_NAME).exists() else {}
    for path in progress.each(f"reading {len(paths)} wheel(s)", paths):
        new = manifest.describe(path, base_url)
        old = listed.get(new.filename, new)
        if old.sha256 != new.sha256:
            raise IntegrityError(
                f"{new.filename} is listed with sha256 {old.sha256}, {path} has {new.sha256}",
                "What is published stays as it is: give the new wheel a version or build number of "
                f"its own. If the old one never was published, delete its row in "
                f"{folder / FILE_NAME} and its file first.",
            )
        listed[new.filename] = new
    for path in paths:
        if base_url is None:
            _copy(path, folder / path.name)
        else:
            _write(_sidecar(path), _metadata(path))
            progress.note(f"publish {path} and {_sidecar(path).name} in {base_url}")
    manifest.write(folder, listed)


def make(folder: Path) -> None:
    """Make everything that clients of the index read; what is right already is left alone.

    Each file is replaced at once, in an order that never shows a page before what it links to.

    Raises:
        IntegrityError: the wheels that are there are not those of the manifest; nothing is made.
    """
    listed = manifest.load(folder)
    _refuse(folder, list(_misfits(folder, listed)))
    wanted = _generated(folder, listed)
    for path, content in wanted.items():
        if not path.is_file() or path.read_bytes() != content:
            _write(path, content)
    for path in sorted(_present(folder) - wanted.keys()):
        path.unlink()
        with suppress(OSError):  # the folder of a project that still has pages
            path.parent.rmdir()


def check(folder: Path) -> None:
    """Check that an index is what its manifest says.

    Raises:
        IntegrityError: it is not; the message says what differs, why, and what to do.
    """
    listed = manifest.load(folder)
    misfits = list(_misfits(folder, listed))
    _refuse(folder, misfits or list(_stale(folder, _generated(folder, listed))))


def check_online(folder: Path) -> None:
    """Check that the wheels with an URL are there, with their sidecars.

    Compares sizes of wheels and hashes of sidecars: neither needs a download of the wheel.

    Raises:
        NetworkError: one cannot be read.
        IntegrityError: one is not what the manifest says.
    """
    published = [(wheel, wheel.url) for wheel in manifest.load(folder).values() if wheel.url]
    problems = [
        problem
        for wheel, url in progress.each("looking for what is published", published, brief=True)
        if (problem := _wrong_online(wheel, url))
    ]
    _refuse(folder, problems)


def _wrong_online(wheel: Published, url: str) -> str:
    try:
        size = remote.RangeFile(url).size
        sidecar = remote.RangeFile(url + SIDECAR)
        content = bytearray(sidecar.size)
        sidecar.readinto(content)
    except NetworkError as error:
        raise NetworkError(
            f"{wheel.filename} is listed, but not to be had: {error.args[0]}",
            f"Publish the wheel and its {SIDECAR} file, which --add with --base-url writes.",
        ) from error
    if (size, hashlib.sha256(content).hexdigest()) == (wheel.size, wheel.metadata_sha256):
        return ""
    return (
        f"{url} or its {SIDECAR} file is not what {FILE_NAME} says.\n"
        "    Publish the wheel that was listed, and the file that --add wrote beside it."
    )


def _misfits(folder: Path, listed: dict[str, Published]) -> Iterator[str]:
    """How the wheels of a folder differ from its manifest."""
    present = {path.name: path for path in sorted(folder.glob("*.whl"))}
    for name, path in progress.each("checking wheels", list(present.items()), brief=True):
        if name not in listed:
            yield (
                f"{name} is in the folder, but not in {FILE_NAME}.\n"
                f"    List it with `lms index {folder} --add {path}`, or remove it."
            )
        elif (found := files.sha256_of(path)) != listed[name].sha256:
            yield (
                f"{name} has sha256 {found}, {FILE_NAME} says {listed[name].sha256}: "
                "it was damaged, or replaced.\n"
                "    Restore it, or give the new wheel a version or build number of its own."
            )
    for name, wheel in listed.items():
        if wheel.url is None and name not in present:
            yield (
                f"{name} is in {FILE_NAME} without an url, but not in the folder.\n"
                "    Put it there, say where it is with --add and --base-url, or delete its row."
            )


def _stale(folder: Path, wanted: dict[Path, bytes]) -> Iterator[str]:
    """How the files that are made differ from what `make` would make."""
    remedy = f"\n    Run `lms index {folder}`."
    for path, content in wanted.items():
        if not path.is_file():
            yield f"{path.relative_to(folder)} is missing.{remedy}"
        elif path.read_bytes() != content:
            yield f"{path.relative_to(folder)} was changed, or the manifest was.{remedy}"
    for path in sorted(_present(folder) - wanted.keys()):
        yield f"{path.relative_to(folder)} belongs to no listed wheel.{remedy}"


def _refuse(folder: Path, problems: list[str]) -> None:
    if problems:
        text = "\n".join(f"  {problem}" for problem in problems)
        raise IntegrityError(f"{folder} is not the index its {FILE_NAME} describes:\n{text}")


def _generated(folder: Path, listed: dict[str, Published]) -> dict[Path, bytes]:
    """Content of every file that is made, in the order of making."""
    sidecars = {_sidecar(path): _metadata(path) for path in sorted(folder.glob("*.whl"))}
    pages = rendering.pages(listed.values())
    return sidecars | {folder / PAGES / name: text.encode() for name, text in pages.items()}


def _present(folder: Path) -> set[Path]:
    """Every file that `make` made, now or before."""
    return {path for pattern in MADE for path in folder.glob(pattern)}


def _sidecar(wheel: Path) -> Path:
    return wheel.with_name(wheel.name + SIDECAR)


def _metadata(path: Path) -> bytes:
    with Wheel(path) as wheel:
        return manifest.metadata(wheel)


def _copy(source: Path, target: Path) -> None:
    if source.resolve() != target.resolve():
        with files.written_beside(target) as temporary:
            shutil.copyfile(source, temporary)


def _write(target: Path, content: bytes) -> None:
    with files.written_beside(target) as temporary:
        temporary.write_bytes(content)
