"""Making the small wheel, verified."""

from __future__ import annotations

from pathlib import Path

from lms_cli import files, paths, progress, releases
from lms_cli.addon import small_wheel, verify_addon
from lms_cli.errors import UsageError
from lms_cli.releases import MACHINE, Release
from lms_cli.wheel import builds, wheelfile
from lms_cli.wheel.wheelfile import Written


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
    parts: list[small_wheel.Part] = []
    libraries: dict[str, bytes] = {}
    with files.locked(paths.home() / "builds"):
        for release in progress.each(f"making {len(chosen)} libraries", chosen):
            with small_wheel.texts(release, machine) as official:
                parts.append(small_wheel.part(release, official))
                libraries[release.version] = small_wheel.library(parts[-1], official)
        members = small_wheel.contents(parts, libraries)
        target = folder / small_wheel.filename(small_wheel.platform_tag(libraries.values()))
        with (
            progress.step(f"writing and verifying {target.name}", brief=True),
            files.workspace(folder) as unverified,
            small_wheel.texts(chosen[-1], machine) as newest,
        ):
            made = unverified / target.name
            wheelfile.write(
                made,
                newest,  # nothing is copied from it, but members are as old as its newest
                {name: Written(content) for name, content in members.items()},
                {name: wheelfile.record_row(content) for name, content in members.items()},
                small_wheel.dist_info(),
            )
            builds.report(made, verify_addon.verify(made, chosen[-1].patches))
            made.replace(target)
    return target
