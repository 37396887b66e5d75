"""Making the small wheel, verified."""

from __future__ import annotations

from pathlib import Path

from lms_cli import addon, addon_verify, builds, files, paths, releases, wheelfile
from lms_cli.errors import UsageError
from lms_cli.releases import MACHINE, Release
from lms_cli.wheelfile import Written


def choose(named: list[Release], patches: Path, machine: str) -> list[Release]:
    """The releases to build for, oldest first: those named, or all that the machine has.

    Raises:
        UsageError: there is none.
    """
    found = [
        release
        for release in releases.load(patches).values()
        if (release in named if named else release.wheels_on(machine))
    ]
    if not found:
        raise UsageError(f"no release has official wheels on {machine}", "Name another --machine.")
    return found


def build(chosen: list[Release], folder: Path, machine: str = MACHINE) -> Path:
    """Make the small wheel of a machine for releases, the newest last; return its path.

    The wheel appears in `folder` only after it passed all checks.

    Raises:
        LmsError: one of its kinds, by what failed; nothing half-written is left.
    """
    parts: list[addon.Part] = []
    libraries: dict[str, bytes] = {}
    with files.locked(paths.home() / "builds"):
        for release in chosen:
            with addon.texts(release, machine) as official:
                parts.append(addon.part(release, official))
                libraries[release.version] = addon.library(parts[-1], official)
        members = addon.contents(parts, libraries)
        target = folder / addon.filename(addon.platform_tag(libraries.values()))
        with files.workspace(folder) as unverified, addon.texts(chosen[-1], machine) as newest:
            made = unverified / target.name
            wheelfile.write(
                made,
                newest,  # nothing is copied from it, but members are as old as its newest
                {name: Written(content) for name, content in members.items()},
                {name: wheelfile.record_row(content) for name, content in members.items()},
                addon.dist_info(),
            )
            builds.report(made, addon_verify.verify(made, chosen[-1].patches))
            made.replace(target)
    return target
