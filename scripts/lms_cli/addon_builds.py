"""Making the small wheel, verified."""

from __future__ import annotations

from pathlib import Path

from lms_cli import addon, addon_verify, builds, files, paths, wheelfile
from lms_cli.releases import MACHINE, Release
from lms_cli.wheelfile import Written


def build(releases: list[Release], folder: Path, machine: str = MACHINE) -> Path:
    """Make the small wheel of a machine for releases, the newest last; return its path.

    The wheel appears in `folder` only after it passed all checks.

    Raises:
        LmsError: one of its kinds, by what failed; nothing half-written is left.
    """
    parts: list[addon.Part] = []
    libraries: dict[str, bytes] = {}
    with files.locked(paths.home() / "builds"):
        for release in releases:
            with addon.texts(release, machine) as official:
                parts.append(addon.part(release, official))
                libraries[release.version] = addon.library(parts[-1], official)
        members = addon.contents(parts, libraries)
        target = folder / addon.filename(addon.platform_tag(libraries.values()))
        with files.workspace(folder) as unverified, addon.texts(releases[-1], machine) as newest:
            made = unverified / target.name
            wheelfile.write(
                made,
                newest,  # nothing is copied from it, but members are as old as its newest
                {name: Written(content) for name, content in members.items()},
                {name: wheelfile.record_row(content) for name, content in members.items()},
                addon.dist_info(),
            )
            builds.report(made, addon_verify.verify(made, releases[-1].patches))
            made.replace(target)
    return target
