"""The releases of PyTorch that LMS supports, as `patches/releases.yaml` lists them."""

from __future__ import annotations

import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lms_cli import files
from lms_cli.errors import LmsError, UsageError

FILE_NAME = "releases.yaml"
MACHINE = "x86_64"  # what wheels are built for unless another is named, and tested on
PROMISED_GLIBC = (2, 28)  # of the oldest systems that our libraries are made for
WHEEL_NAME = re.compile(
    r"torch-(?P<version>[^-]+)(?P<build>-\d+)?-cp3\d+-(?P<python>cp3\d+t?)-"
    r"(?P<platform>manylinux(\d+|_(?P<major>\d+)_(?P<minor>\d+))_(?P<machine>\w+))\.whl"
)


@dataclass(frozen=True)
class OfficialWheel:
    """One wheel that upstream published."""

    filename: str  # torch-2.11.0-cp312-cp312-manylinux_2_28_x86_64.whl
    sha256: str
    size: int  # bytes

    def __post_init__(self) -> None:
        """Refuse what is not the name of a wheel of torch for CPython on Linux.

        Raises:
            ValueError: it is not.
        """
        if not WHEEL_NAME.fullmatch(self.filename):
            raise ValueError(f"{self.filename} is not the name of a wheel of torch for Linux")

    def _part(self, name: str) -> str:
        match = WHEEL_NAME.fullmatch(self.filename)
        return (match[name] or "") if match else ""

    @property
    def version(self) -> str:
        """2.11.0, for a nightly 2.16.0.dev20261101+cu130."""
        return self._part("version")

    @property
    def python(self) -> str:
        """cp313t: interpreter tag cp313, ABI tag cp313t."""
        return self._part("python")

    @property
    def platform(self) -> str:
        """manylinux_2_28_x86_64."""
        return self._part("platform")

    @property
    def machine(self) -> str:
        """x86_64 or aarch64."""
        return self._part("machine")

    @property
    def promised_platform(self) -> str:
        """The platform tag of our wheel if its library keeps the promise.

        It is that of the newer systems: of those the official wheel is for, and of those that our
        libraries are made for.
        """
        glibc = (int(self._part("major") or 0), int(self._part("minor") or 0))
        major, minor = max(glibc, PROMISED_GLIBC)
        return f"manylinux_{major}_{minor}_{self.machine}"


@dataclass(frozen=True)
class Release:
    """One release and where its series is."""

    version: str  # 2.11.0
    tag: str  # v2.11.0
    commit: str  # 40 hexadecimal digits
    cuda: str  # 13.0
    label: str  # cu130.lms1
    cxx_standard: int  # 17
    cxx11_abi: bool  # false: the official wheel uses the C++ library's ABI from before C++11
    cuda_headers: tuple[str, ...]  # package names
    official: tuple[OfficialWheel, ...]  # all of them
    patches: Path  # the folder releases.yaml is in

    @property
    def lms_version(self) -> str:
        """Version of our wheel: 2.11.0+cu130.lms1."""
        return f"{self.version}+{self.label}"

    @property
    def cuda_major(self) -> str:
        """Major version of CUDA, as in libcudart.so.13."""
        return self.cuda.partition(".")[0]

    @property
    def wheels(self) -> dict[str, OfficialWheel]:
        """The official wheels for `MACHINE` by Python: cp312."""
        return self.wheels_on(MACHINE)

    def wheels_on(self, machine: str) -> dict[str, OfficialWheel]:
        """The official wheels for a machine by Python."""
        return {wheel.python: wheel for wheel in self.official if wheel.machine == machine}

    @property
    def series(self) -> Path:
        """Folder of this release's hunks."""
        return self.patches / self.tag

    @property
    def lock(self) -> Path:
        """Lock file of everything that goes into an environment with this release, but torch."""
        return self.series / "requirements.lock"

    def wheel_filename(self, official: OfficialWheel, platform: str | None = None) -> str:
        """File name of our wheel made from an official one.

        Args:
            official: that wheel.
            platform: our platform tag, if it is not the promised one.
        """
        name = official.filename.replace(f"-{official.version}-", f"-{self.lms_version}-", 1)
        return name.replace(official.platform, platform or official.promised_platform)

    def wheel_for(self, python: str, machine: str = MACHINE) -> OfficialWheel:
        """The official wheel for a Python given as on the command line or as a tag.

        Raises:
            UsageError: there is none; the message lists what there is.
        """
        wheels = self.wheels_on(machine)
        tag = python_tag(python)
        if tag not in wheels:
            pythons = ", ".join(map(dotted, wheels)) or f"none on {machine}"
            raise UsageError(
                f"PyTorch {self.version} has no official wheel for Python {python} on {machine}",
                f"There are wheels for Python {pythons}.",
            )
        return wheels[tag]


def python_tag(python: str) -> str:
    """The tag of a Python: 3.13t and cp313t are both cp313t."""
    match = re.fullmatch(r"3\.(\d+)(t?)", python)
    return f"cp3{match[1]}{match[2]}" if match else python


def dotted(tag: str) -> str:
    """The inverse of `python_tag`: cp313t is 3.13t."""
    return re.sub(r"^cp(\d)", r"\1.", tag)


def running_python() -> str:
    """The tag of the Python that runs this."""
    threads = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    return f"cp{sys.version_info.major}{sys.version_info.minor}{threads}"


def load(patches: Path) -> dict[str, Release]:
    """All releases of a patches folder by version, oldest first.

    Raises:
        LmsError: the list is missing or malformed.
    """
    return _listed(patches)[1]


def default(patches: Path) -> Release:
    """The release that is meant where none is named.

    Raises:
        LmsError: the list is missing or malformed.
    """
    version, listed = _listed(patches)
    return listed[version]


def for_python(tag: str, patches: Path) -> list[Release]:
    """The releases that have an official wheel for a Python, oldest first.

    Raises:
        LmsError: the list is missing or malformed.
    """
    return [release for release in load(patches).values() if tag in release.wheels]


def _listed(patches: Path) -> tuple[str, dict[str, Release]]:
    import yaml

    path = patches / FILE_NAME
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        listed = {
            version: _release(version, row, patches) for version, row in data["releases"].items()
        }
        return listed[data["default"]].version, listed
    except OSError as error:
        raise LmsError(f"cannot read the list of releases: {error}") from error
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        problem = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise LmsError(f"{path} is malformed: {problem}") from error


def add(release: Release, patches: Path) -> None:
    """Write the row of a release into a folder's list, in the order of versions.

    Everything else in the file stays as it is, comments included.
    """
    from packaging.version import Version

    path = patches / FILE_NAME
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    place = len(lines)
    for number, line in enumerate(lines):
        match = re.fullmatch(r'  "(.+)":\n', line)
        if match and Version(match[1]) > Version(release.version):
            place = number
            break
    files.write_text(path, "".join([*lines[:place], as_row(release), *lines[place:]]))


def as_row(release: Release) -> str:
    """A release as the list has it."""
    wheels = "".join(
        f"      {wheel.filename}:\n        sha256: {wheel.sha256}\n        size: {wheel.size}\n"
        for wheel in release.official
    )
    return (
        f'  "{release.version}":\n'
        f"    tag: {release.tag}\n"
        f"    commit: {release.commit}\n"
        f'    cuda: "{release.cuda}"\n'
        f"    label: {release.label}\n"
        f"    cxx_standard: {release.cxx_standard}\n"
        f"    cxx11_abi: {str(release.cxx11_abi).lower()}\n"
        f"    cuda_headers: [{', '.join(release.cuda_headers)}]\n"
        f"    wheels:\n{wheels}"
    )


def find(version: str, patches: Path) -> Release:
    """The release of a version.

    Raises:
        UsageError: LMS does not support it; the message lists what it supports.
    """
    releases = load(patches)
    name = version.removeprefix("v")
    if name not in releases:
        raise UsageError(
            f"there is no LMS series for PyTorch {version}",
            f"Supported releases: {', '.join(releases)}.",
        )
    return releases[name]


def _release(version: str, row: dict[str, Any], patches: Path) -> Release:
    if not re.fullmatch(r"[0-9a-f]{40}", row["commit"]):
        raise ValueError(f"{version}: commit is not 40 hexadecimal digits")
    return Release(
        version=version,
        tag=row["tag"],
        commit=row["commit"],
        cuda=row["cuda"],
        label=row["label"],
        cxx_standard=row["cxx_standard"],
        cxx11_abi=row["cxx11_abi"],
        cuda_headers=tuple(row["cuda_headers"]),
        official=tuple(
            OfficialWheel(filename, wheel["sha256"], wheel["size"])
            for filename, wheel in row["wheels"].items()
        ),
        patches=patches,
    )
