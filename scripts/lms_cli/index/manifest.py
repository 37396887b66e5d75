"""`manifest.yaml`: what each published wheel is, where it is, and what it was made from."""

from __future__ import annotations

import hashlib
import re
import urllib.parse
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from lms_cli import files
from lms_cli.errors import LmsError, WheelError
from lms_cli.wheel import compile, graft
from lms_cli.wheel.wheelfile import Wheel

FILE_NAME = "manifest.yaml"
MEMBER_LISTS = ("added", "changed")  # of LMS.json; long, and the wheel has them
SIDECAR = ".metadata"  # after a wheel's file name: its METADATA (PEP 658)
HEADER = """\
# Every published wheel. `lms index --add WHEEL` writes this file, and the pages in simple/ from it.
# To withdraw a wheel, delete its row here and its file, and run `lms index`.
#
#   sha256, size      of the wheel; the size is in bytes
#   url               where it is; one without is in this folder
#   requires_python   the Pythons it is for, as its METADATA says
#   metadata_sha256   of its METADATA, which lies beside the wheel, named as the wheel and .metadata
#   libraries         sha256 of each libtorch_lms*.so in it, by member
#   made_from         what it says itself in LMS.json: the official wheel, the series
"""


@dataclass(frozen=True, kw_only=True)
class Published:
    """One wheel of the index."""

    filename: str  # torch-2.11.0+cu130.lms1-cp312-cp312-manylinux_2_28_x86_64.whl
    sha256: str
    size: int  # bytes
    url: str | None = None  # None: in the folder of the manifest
    requires_python: str | None = None  # >=3.10
    metadata_sha256: str
    libraries: dict[str, str]  # sha256 by member
    made_from: dict[str, Any]  # its LMS.json without lists of members

    def __post_init__(self) -> None:
        """Refuse what would make a page that lies.

        Raises:
            ValueError: the name is not a wheel's, or a hash is none.
        """
        parse(self.filename)
        for sha256 in (self.sha256, self.metadata_sha256, *self.libraries.values()):
            if not re.fullmatch(r"[0-9a-f]{64}", sha256):
                raise ValueError(f"{self.filename}: {sha256!r} is not a sha256")

    @property
    def project(self) -> str:
        """Normalised name of the project: torch-lms."""
        return parse(self.filename)[0]

    @property
    def version(self) -> str:
        """Version of the project: 2.11.0+cu130.lms1."""
        return parse(self.filename)[1]


def parse(filename: str) -> tuple[str, str]:
    """The normalised project and the version in a wheel's file name.

    Raises:
        ValueError: it is not a wheel's.
    """
    from packaging.utils import parse_wheel_filename

    name, version, _, _ = parse_wheel_filename(filename)
    return name, str(version)


def load(folder: Path) -> dict[str, Published]:
    """The wheels of a folder's manifest, by file name.

    Raises:
        LmsError: there is no manifest, or it is malformed.
    """
    import yaml

    path = folder / FILE_NAME
    try:
        rows = yaml.safe_load(path.read_text(encoding="utf-8"))["wheels"] or {}
        return {name: Published(filename=name, **row) for name, row in rows.items()}
    except OSError as error:
        raise LmsError(
            f"cannot read the manifest of published wheels: {error}",
            f"`lms index {folder} --add WHEEL` starts one.",
        ) from error
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        problem = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise LmsError(
            f"{path} is malformed: {problem}",
            "Undo what was changed by hand; `lms index --add WHEEL` writes the rows.",
        ) from error


def write(folder: Path, wheels: dict[str, Published]) -> None:
    """Write a folder's manifest: the same wheels give the same text."""
    import yaml

    rows = {}
    for name, wheel in sorted(wheels.items()):
        row = {key: value for key, value in asdict(wheel).items() if value is not None}
        del row["filename"]
        rows[name] = row
    text = yaml.safe_dump({"wheels": rows}, sort_keys=False, width=1000)
    files.write_text(folder / FILE_NAME, HEADER + text)


def describe(path: Path, base_url: str | None) -> Published:
    """The row of a wheel.

    Args:
        path: the wheel.
        base_url: the folder it is published in, None for the manifest's own.

    Raises:
        WheelError: it is not a wheel, not one of LMS, or its name does not fit its METADATA.
    """
    from packaging.metadata import parse_email

    with Wheel(path) as wheel:
        said = graft.statement(wheel)
        content = metadata(wheel)
        libraries = {
            name: hashlib.sha256(wheel.read(name)).hexdigest()
            for name in sorted(wheel.members)
            if PurePosixPath(name).match(f"{PurePosixPath(compile.LIBRARY).stem}*.so")
        }
    fields = parse_email(content)[0]
    _check_name(path.name, fields.get("name", ""), fields.get("version", ""))
    return Published(
        filename=path.name,
        sha256=files.sha256_of(path),
        size=path.stat().st_size,
        url=base_url and f"{base_url.rstrip('/')}/{urllib.parse.quote(path.name)}",
        requires_python=fields.get("requires_python"),
        metadata_sha256=hashlib.sha256(content).hexdigest(),
        libraries=libraries,
        made_from={key: said[key] for key in sorted(said) if key not in MEMBER_LISTS},
    )


def metadata(wheel: Wheel) -> bytes:
    """A wheel's METADATA, as its sidecar has it."""
    return wheel.read(f"{wheel.dist_info}/METADATA")


def _check_name(filename: str, name: str, version: str) -> None:
    from packaging.utils import canonicalize_name
    from packaging.version import InvalidVersion, Version

    try:
        said = (canonicalize_name(name), str(Version(version)))
        if parse(filename) == said:
            return
    except InvalidVersion as error:
        raise WheelError(f"{filename}: bad version in METADATA: {error}") from error
    except ValueError as error:
        raise WheelError(f"{filename} is not a wheel's name: {error}") from error
    raise WheelError(
        f"{filename} is not what it is called: its METADATA says {name} {version}",
        "pip and uv would refuse it. Give it back the name it was built with.",
    )
