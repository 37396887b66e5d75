"""What is supported, built and published, and what the package index has that is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lms_cli import paths, releases
from lms_cli.index import manifest, remote
from lms_cli.index.remote import Listed
from lms_cli.releases import Release
from lms_cli.series import lint, series
from lms_cli.wheel import builds

if TYPE_CHECKING:
    from packaging.version import Version

WIDTH = 120  # characters of a table that is written to a file


@dataclass(frozen=True)
class Row:
    """One supported release."""

    release: str  # 2.11.0
    cuda: str  # 13.0
    commit: str
    pythons: tuple[str, ...]  # 3.12, 3.13t
    patches: int
    files: int  # upstream files that the series changes
    lines: int  # upstream lines that it removes and adds
    built: tuple[str, ...]  # Pythons whose LMS wheel is in .lms/wheels
    published: tuple[str, ...]  # Pythons whose LMS wheel is in the manifest of wheels/


@dataclass(frozen=True)
class Online:
    """How the package index differs from what is supported."""

    unsupported: dict[str, str]  # release, newer than our oldest: what is supported instead, or ""
    pins: dict[str, str]  # official wheel that is pinned: what is wrong with it


def row(release: Release) -> Row:
    """What is here of a release.

    Raises:
        LmsError: the series or the manifest cannot be read.
    """
    extent = lint.extent(series.load(release))
    published = manifest.load(paths.INDEX)
    built = {path.name for path in builds.built(release)}
    names = {
        releases.dotted(python): release.wheel_filename(wheel)
        for python, wheel in release.wheels.items()
    }
    return Row(
        release=release.version,
        cuda=release.cuda,
        commit=release.commit,
        pythons=tuple(names),
        patches=extent.patches,
        files=extent.files,
        lines=extent.lines,
        built=tuple(python for python, name in names.items() if name in built),
        published=tuple(python for python, name in names.items() if name in published),
    )


def online(supported: list[Release]) -> Online:
    """Compare with what the index lists.

    Raises:
        NetworkError: it cannot be read.
    """
    listed = remote.listing("torch")
    return Online(
        unsupported=_unsupported(supported, listed),
        pins=dict(_broken_pins(supported, listed)),
    )


def _unsupported(supported: list[Release], listed: tuple[Listed, ...]) -> dict[str, str]:
    """Releases with a wheel for our platform, newer than our oldest, that have no series."""
    from packaging.version import Version

    ours = {Version(release.version) for release in supported}
    there = {version for file in listed if (version := _version(file)) is not None}
    newer = sorted(version for version in there - ours if version > min(ours))
    return {str(version): _instead(version, ours) for version in newer}


def _version(file: Listed) -> Version | None:
    """The release that a file is for, if people can install it on Linux on x86-64."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        _, version, _, tags = parse_wheel_filename(file.filename)
    except InvalidWheelFilename:
        return None
    ours = any("linux" in tag.platform and tag.platform.endswith("x86_64") for tag in tags)
    return version if ours and not file.yanked and not version.is_prerelease else None


def _instead(version: Version, ours: set[Version]) -> str:
    """The later patch release of the same minor release that is supported, if there is one."""
    later = [mine for mine in ours if mine.release[:2] == version.release[:2] and mine > version]
    return str(max(later)) if later else ""


def _broken_pins(supported: list[Release], listed: tuple[Listed, ...]) -> Iterator[tuple[str, str]]:
    by_name = {file.filename: file for file in listed}
    for release in supported:
        for wheel in release.official:
            file = by_name.get(wheel.filename)
            if file is None:
                yield wheel.filename, "the index does not list it"
            elif file.sha256 != wheel.sha256:
                yield wheel.filename, f"the index has it with sha256 {file.sha256}"
            elif file.yanked:
                yield wheel.filename, "it was yanked"


def to_json(rows: list[Row], found: Online | None) -> dict[str, Any]:
    """Everything as one object for programs; `online` is null if nobody asked."""
    return {
        "releases": [asdict(row) for row in rows],
        "online": asdict(found) if found else None,
    }


def show(rows: list[Row], found: Online | None) -> None:
    """Print everything for people."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    table = Table()
    for heading in ("release", "CUDA", "commit", "Pythons"):
        table.add_column(heading, no_wrap=True)
    for heading in ("patches", "files", "lines", "built", "published"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        of_all = (f"{len(made)}/{len(row.pythons)}" for made in (row.built, row.published))
        table.add_row(
            row.release,
            row.cuda,
            row.commit[:12],
            " ".join(row.pythons),
            *(str(count) for count in (row.patches, row.files, row.lines)),
            *of_all,
        )
    console.print(table)
    if found is not None:
        for line in _lines(found):
            print(line)


def _lines(found: Online) -> Iterator[str]:
    for version, instead in found.unsupported.items():
        yield f"PyTorch {version} is not supported" + (f", {instead} is" if instead else "")
    if not found.unsupported:
        yield "every release on the index since the oldest is supported"
    for name, problem in found.pins.items():
        yield f"{name}: {problem}"
    if not found.pins:
        yield "every pinned wheel is on the index"
