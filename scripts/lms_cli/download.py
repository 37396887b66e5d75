"""Fetching pinned files into the download cache.

The cache holds each file under its sha256 and only complete, checked files: pip downloads into a
staging folder beside it, and one rename publishes the result.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path

from lms_cli import files, paths, progress
from lms_cli.environments import locks, pip
from lms_cli.errors import IntegrityError, LmsError, NetworkError
from lms_cli.index import remote
from lms_cli.releases import MACHINE, OfficialWheel, Release
from lms_cli.wheel import wheelfile
from lms_cli.wheel.wheelfile import Wheel

Directory = dict[str, tuple[int, int]]  # CRC-32 and size in bytes, by member name
OLDEST_GLIBC, NEWEST_GLIBC = 17, 28  # minor versions in the tags of wheels for other machines


def fetch_official(wheel: OfficialWheel) -> Path:
    """Path of an official wheel in the cache, downloaded if it is not there.

    Raises:
        NetworkError, IntegrityError, SpaceError: it cannot be had; nothing is left behind.
    """
    if cached := _cached((wheel.sha256,)):
        return cached
    files.require_space(
        paths.downloads(), wheel.size + wheel.size // 10, f"downloading {wheel.filename}"
    )
    target = [
        f"--python-version={wheel.python.removeprefix('cp').rstrip('t')}",
        f"--abi={wheel.python}",
        f"--platform={wheel.platform}",
        "--implementation=cp",
    ]
    return _download(f"torch=={wheel.version}", (wheel.sha256,), target)


def keep(path: Path, sha256: str) -> None:
    """Put a file into the cache."""
    target = paths.downloads() / sha256 / path.name
    if not target.exists():
        with files.written_beside(target) as temporary:
            shutil.copyfile(path, temporary)


def fetch_texts(wheel: OfficialWheel) -> Path:
    """Path of a zip file with an official wheel's headers, Python files and metadata.

    Takes them from the whole wheel if that is in the cache, else only them from the index, about
    25 MB of 500. Every member is checked against the wheel's own RECORD.

    Raises:
        NetworkError: the index cannot be reached, does not have the wheel, or sends whole files
            only.
        WheelError: what it sent is damaged.
    """
    target = _texts(wheel) / wheel.filename
    if target.exists():
        return target
    with (
        progress.step(f"reading the texts of {wheel.filename}"),
        _open(wheel) as source,
    ):
        names = [name for name in source.members if _is_text(name, source.dist_info)]
        wheelfile.write_part(target, source, names)
    return target


def fetch_directory(wheel: OfficialWheel) -> Directory:
    """What an official wheel's central directory says of its headers, Python files and metadata.

    It takes about 1.2 MB of the wheel.

    Raises:
        NetworkError, WheelError: as for `fetch_texts`.
    """
    target = _texts(wheel) / "directory.json"
    if not target.exists():
        with _open(wheel) as source:
            rows = {
                name: (info.CRC, info.file_size)
                for name, info in source.members.items()
                if _is_text(name, source.dist_info)
            }
        files.write_text(target, json.dumps(rows))
    return {name: (crc, size) for name, (crc, size) in json.loads(target.read_text()).items()}


def any_texts(release: Release) -> Path:
    """The texts of one wheel of a release, from the cache if possible: see `fetch_texts`.

    `lms verify` proves that what a series touches is the same in all wheels of a release.
    """
    wheels = list(release.wheels.values())
    here = (wheel for wheel in wheels if any((paths.downloads() / wheel.sha256).rglob("*.whl")))
    return fetch_texts(next(here, wheels[0]))


def _texts(wheel: OfficialWheel) -> Path:
    return paths.downloads() / wheel.sha256 / "texts"


def _open(wheel: OfficialWheel) -> Wheel:
    whole = _cached((wheel.sha256,))
    return Wheel(whole) if whole else _remote(wheel)


def _is_text(name: str, dist_info: str) -> bool:
    if name.endswith("/"):
        return False
    is_python = name.startswith("torch/") and name.endswith((".py", ".pyi"))
    return is_python or name.startswith(("torch/include/", f"{dist_info}/"))


def _remote(wheel: OfficialWheel) -> Wheel:
    for listed in remote.listing("torch"):
        if listed.sha256 == wheel.sha256:
            stream = io.BufferedReader(remote.RangeFile(listed.url), remote.READ_AHEAD)
            return Wheel(Path(wheel.filename), stream)
    raise NetworkError(
        f"the index lists no {wheel.filename} with sha256 {wheel.sha256}",
        "Set PIP_INDEX_URL to an index that has PyTorch's official wheels, or unset it for PyPI.",
    )


def fetch_locked(lock: Path, package: str, machine: str = MACHINE) -> Path:
    """Path of the wheel of a locked package, downloaded if it is not in the cache.

    Args:
        lock: the lock file.
        package: its name there.
        machine: what it is for, x86_64 or aarch64.

    Raises:
        LmsError: the lock does not have the package.
        NetworkError, IntegrityError, SpaceError: it cannot be had; nothing is left behind.
    """
    pin = locks.read(lock).get(package)
    if pin is None:
        raise LmsError(
            f"{lock} has no package {package}",
            "Add it and lock again: see scripts/locks/README.md.",
        )
    target = [] if machine == MACHINE else _platforms(machine)
    cached = _cached(pin.sha256, (f"{machine}.whl", "any.whl"))
    return cached or _download(f"{pin.name}=={pin.version}", pin.sha256, target)


def _platforms(machine: str) -> list[str]:
    """The options of pip for wheels that another machine takes."""
    minors = range(OLDEST_GLIBC, NEWEST_GLIBC + 1)
    return [f"--platform=manylinux_2_{minor}_{machine}" for minor in minors]


def _cached(hashes: tuple[str, ...], endings: tuple[str, ...] = ("",)) -> Path | None:
    """A file that was downloaded before, unless it has been damaged since."""
    for sha256 in hashes:
        for path in (paths.downloads() / sha256).glob("*.whl"):
            if not path.name.endswith(endings):
                continue
            if files.sha256_of(path) == sha256:
                return path
            progress.note(f"{path} is damaged: it is downloaded again")
    return None


def _download(requirement: str, hashes: tuple[str, ...], target: list[str]) -> Path:
    cache = paths.downloads()
    with files.workspace(cache) as staging:
        pinned = staging / "pinned.txt"
        pinned.write_text(
            f"{requirement} {' '.join(f'--hash=sha256:{sha256}' for sha256 in hashes)}\n"
        )
        command = [
            "download",
            "--no-deps",
            "--no-cache-dir",
            "--only-binary=:all:",
            "--require-hashes",
        ]
        pip.run(
            Path(sys.executable),
            [*command, *target, f"--dest={staging}", f"--requirement={pinned}"],
            f"download {requirement}",
        )
        downloaded = next(staging.glob("*.whl"))
        sha256 = files.sha256_of(downloaded)
        if sha256 not in hashes:
            raise IntegrityError(
                f"{downloaded.name} has sha256 {sha256}, pinned is {' or '.join(hashes)}"
            )
        published = cache / sha256 / downloaded.name
        published.parent.mkdir(exist_ok=True)
        downloaded.replace(published)
    return published
