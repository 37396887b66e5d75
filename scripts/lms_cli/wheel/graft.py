"""Grafting a series on an official wheel: what our wheel contains, member by member."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lms_cli.errors import WheelError
from lms_cli.releases import OfficialWheel, Release
from lms_cli.series.series import Applied, Series
from lms_cli.wheel import wheelfile
from lms_cli.wheel.compile import LIBRARY
from lms_cli.wheel.wheelfile import Copied, RecordRow, Wheel, Written

LIBRARY_MEMBER = f"torch/lib/{LIBRARY}"
VERSION_MEMBER = "torch/version.py"
MANIFEST = "LMS.json"  # in the dist-info folder


@dataclass(frozen=True)
class Manifest:
    """What a wheel says of how it was made; in its dist-info folder as JSON."""

    release: str  # 2.11.0
    version: str  # 2.11.0+cu130.lms1
    official_sha256: str
    series_sha256: str
    added: tuple[str, ...]  # members that upstream does not have, dist-info not counted
    changed: tuple[str, ...]  # members with other content than upstream's, dist-info not counted

    def to_json(self) -> str:
        """The manifest as text, always the same for the same content."""
        return json.dumps(self.__dict__, indent=1, sort_keys=True) + "\n"

    @staticmethod
    def read(wheel: Wheel) -> Manifest:
        """The manifest of an LMS wheel.

        Raises:
            WheelError: the wheel has none, so it was not made by this project.
        """
        row = statement(wheel)
        try:
            return Manifest(
                **{**row, "added": tuple(row["added"]), "changed": tuple(row["changed"])}
            )
        except (TypeError, KeyError) as error:
            raise WheelError(f"{wheel.path}: {MANIFEST} is malformed: {error}") from error


def statement(wheel: Wheel) -> dict[str, Any]:
    """What an LMS wheel of any kind says of how it was made.

    Raises:
        WheelError: it says nothing, so it was not made by this project, or nothing readable.
    """
    text = wheel.text(f"{wheel.dist_info}/{MANIFEST}")
    if text is None:
        raise WheelError(f"{wheel.path} is not an LMS wheel: it has no {MANIFEST}")
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise WheelError(f"{wheel.path}: {MANIFEST} is malformed: {error}") from error


def facts(official: Wheel) -> dict[str, str]:
    """What torch/version.py says: `__version__`, `git_version`, and `cuda` if it was built for it.

    Raises:
        WheelError: it is not there.
    """
    version = official.text(VERSION_MEMBER)
    if version is None:
        raise WheelError(f"{official.path} has no {VERSION_MEMBER}: not a wheel of torch")
    return dict(re.findall(r"^(\w+)\b.*= '([^']*)'$", version, re.MULTILINE))


def check_official(release: Release, official: Wheel) -> None:
    """Check that a wheel is the one that the release was pinned to.

    Raises:
        WheelError: its commit or CUDA version is another.
    """
    found = facts(official)
    for name, expected in (("git_version", release.commit), ("cuda", release.cuda)):
        if found.get(name, "missing") != expected:
            raise WheelError(
                f"{official.path.name}: {name} in {VERSION_MEMBER} is "
                f"{found.get(name, 'missing')}, releases.yaml says {expected}"
            )


def relabel_version(text: str, release: Release) -> str:
    """torch/version.py with our version."""
    return _replace_once(r"^__version__ = '[^']*'$", f"__version__ = '{release.lms_version}'", text)


def relabel_metadata(text: str, release: Release) -> str:
    """METADATA with our version; the description below the first empty line is left alone."""
    head, separator, body = text.partition("\n\n")
    return (
        _replace_once(r"^Version: .*$", f"Version: {release.lms_version}", head) + separator + body
    )


def relabel_wheel(text: str, official: OfficialWheel, platform: str) -> str:
    """WHEEL with our platform tag, which upstream's tool may have written before renaming."""
    python = official.python
    return _replace_once(r"^Tag: .*$", f"Tag: {python.rstrip('t')}-{python}-{platform}", text)


def _replace_once(pattern: str, replacement: str, text: str) -> str:
    result, count = re.subn(pattern, lambda _: replacement, text, flags=re.MULTILINE)
    if count != 1:
        raise WheelError(f"expected one line that matches {pattern}, found {count}")
    return result


def contents(
    release: Release,
    official: Wheel,
    series: Series,
    applied: Applied,
    library: bytes | None,
    pinned: OfficialWheel,
    platform: str,
) -> dict[str, bytes]:
    """Every member of our wheel that is not upstream's byte for byte, RECORD aside.

    Args:
        release: the release.
        official: its official wheel.
        series: its series.
        applied: what the series makes of that wheel.
        library: the compiled library, if there is one.
        pinned: what is known of the official wheel.
        platform: the platform tag of ours.
    """
    added = {name: text.encode() for name, text in applied.added.items()}
    if library is not None:
        added[LIBRARY_MEMBER] = library
    changed = {name: text.encode() for name, text in applied.changed.items()}
    if VERSION_MEMBER in changed:
        raise WheelError(f"the series changes {VERSION_MEMBER}, which the label changes too")
    changed[VERSION_MEMBER] = relabel_version(official.text(VERSION_MEMBER) or "", release).encode()
    manifest = Manifest(
        release=release.version,
        version=release.lms_version,
        official_sha256=pinned.sha256,
        series_sha256=series.digest(),
        added=tuple(sorted(added)),
        changed=tuple(sorted(changed)),
    )
    metadata = official.text(f"{official.dist_info}/METADATA") or ""
    wheel = official.text(f"{official.dist_info}/WHEEL") or ""
    dist_info = dist_info_folder(release)
    return {
        **added,
        **changed,
        f"{dist_info}/METADATA": relabel_metadata(metadata, release).encode(),
        f"{dist_info}/WHEEL": relabel_wheel(wheel, pinned, platform).encode(),
        f"{dist_info}/{MANIFEST}": manifest.to_json().encode(),
    }


def dist_info_folder(release: Release) -> str:
    """Name of our wheel's dist-info folder."""
    return f"torch-{release.lms_version}.dist-info"


def renamed(name: str, official: Wheel, dist_info: str) -> str:
    """An official member's name in our wheel."""
    old = f"{official.dist_info}/"
    return f"{dist_info}/{name[len(old) :]}" if name.startswith(old) else name


def expected_record(
    official: Wheel, ours: dict[str, bytes], dist_info: str
) -> dict[str, RecordRow]:
    """The RECORD rows of our wheel, its own aside."""
    record = f"{official.dist_info}/RECORD"
    rows = {
        renamed(name, official, dist_info): row
        for name, row in official.record().items()
        if name != record
    }
    rows.update({name: wheelfile.record_row(content) for name, content in ours.items()})
    return rows


def write(release: Release, official: Wheel, ours: dict[str, bytes], target: Path) -> None:
    """Write our wheel."""
    dist_info = dist_info_folder(release)
    members: dict[str, Copied | Written] = {
        renamed(name, official, dist_info): Copied(info)
        for name, info in official.members.items()
        if name != f"{official.dist_info}/RECORD"
    }
    members.update({name: Written(content) for name, content in ours.items()})
    wheelfile.write(
        target, official, members, expected_record(official, ours, dist_info), dist_info
    )
