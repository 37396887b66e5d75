"""The releases of PyTorch that LMS supports, as `patches/releases.yaml` lists them."""

from __future__ import annotations

import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lms_cli.errors import LmsError, UsageError

FILE_NAME = "releases.yaml"


@dataclass(frozen=True)
class OfficialWheel:
    """One wheel that upstream published."""

    filename: str  # torch-2.11.0-cp312-cp312-manylinux_2_28_x86_64.whl
    version: str  # 2.11.0
    python: str  # cp313t: interpreter tag cp313, ABI tag cp313t
    platform: str  # manylinux_2_28_x86_64
    sha256: str
    size: int  # bytes


@dataclass(frozen=True)
class Release:
    """One release and where its series is."""

    version: str  # 2.11.0
    tag: str  # v2.11.0
    commit: str  # 40 hexadecimal digits
    cuda: str  # 13.0
    label: str  # cu130.lms1
    cxx_standard: int  # 17
    cuda_headers: tuple[str, ...]  # package names
    wheels: dict[str, OfficialWheel]  # by Python: cp312
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
    def series(self) -> Path:
        """Folder of this release's hunks."""
        return self.patches / self.tag

    @property
    def lock(self) -> Path:
        """Lock file of everything that goes into an environment with this release, but torch."""
        return self.series / "requirements.lock"

    def wheel_filename(self, official: OfficialWheel) -> str:
        """File name of our wheel made from an official one."""
        return official.filename.replace(f"-{self.version}-", f"-{self.lms_version}-", 1)

    def wheel_for(self, python: str) -> OfficialWheel:
        """The official wheel for a Python given as on the command line or as a tag.

        Raises:
            UsageError: there is none; the message lists what there is.
        """
        tag = python_tag(python)
        if tag not in self.wheels:
            raise UsageError(
                f"PyTorch {self.version} has no official wheel for Python {python}",
                f"There are wheels for Python {', '.join(map(dotted, self.wheels))}.",
            )
        return self.wheels[tag]


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
    """All releases of a patches folder by version.

    Raises:
        LmsError: the file is missing or malformed.
    """
    import yaml

    path = patches / FILE_NAME
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        return {
            version: _release(version, row, patches) for version, row in data["releases"].items()
        }
    except OSError as error:
        raise LmsError(f"cannot read the list of releases: {error}") from error
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        problem = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise LmsError(f"{path} is malformed: {problem}") from error


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


def newest(patches: Path) -> Release:
    """The release listed last."""
    return list(load(patches).values())[-1]


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
        cuda_headers=tuple(row["cuda_headers"]),
        wheels={
            python: OfficialWheel(
                filename=f"torch-{version}-{python.rstrip('t')}-{python}-{row['platform']}.whl",
                version=version,
                python=python,
                platform=row["platform"],
                sha256=wheel["sha256"],
                size=wheel["size"],
            )
            for python, wheel in row["wheels"].items()
        },
        patches=patches,
    )
