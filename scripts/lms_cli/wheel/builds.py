"""From an official wheel to a verified LMS wheel, doing only what is not done yet."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from lms_cli import download, files, paths, progress
from lms_cli.checks import Check, Outcome
from lms_cli.errors import VerifyError
from lms_cli.releases import MACHINE, Release
from lms_cli.series import series
from lms_cli.wheel import compile, elf, graft, platforms, toolchain, verify_wheel
from lms_cli.wheel.wheelfile import Wheel

WHEEL_SPACE = 1_500_000_000  # bytes: a wheel, its temporary copy, headers and objects


def wheels_folder() -> Path:
    """Where wheels go unless the user names a folder."""
    return paths.home() / "wheels"


def built(release: Release) -> list[Path]:
    """The LMS wheels of a release that are in that folder."""
    return sorted(wheels_folder().glob(f"torch-{release.lms_version}-*.whl"))


def build(
    release: Release, python: str, folder: Path, machine: str = MACHINE, quiet: bool = False
) -> Path:
    """Make the LMS wheel of a release for one Python, verified; return its path.

    The wheel appears in `folder` only after it passed all checks. If one made from the same inputs
    is there already, it is kept, which is said unless `quiet`.

    Args:
        release: the release of PyTorch.
        python: as on the command line, or a tag.
        folder: where the wheel goes.
        machine: what it is for, x86_64 or aarch64.
        quiet: say nothing if there is nothing to do.

    Raises:
        LmsError: one of its kinds, by what failed; nothing half-written is left.
    """
    pinned = release.wheel_for(python, machine)
    loaded = series.load(release)
    with files.locked(paths.home() / "builds"):
        promised = folder / release.wheel_filename(pinned)
        key = hashlib.sha256(str(promised.resolve()).encode()).hexdigest()
        stamp = paths.home() / "stamps" / f"{key}.json"
        inputs = _inputs(release, loaded, pinned.sha256)
        if current := _current(folder, stamp, inputs):
            if not quiet:
                progress.note(f"{current.name} is up to date")
            return current
        files.require_space(folder, WHEEL_SPACE, f"building {promised.name}")
        with Wheel(download.fetch_official(pinned)) as official:
            graft.check_official(release, official)
            applied = series.apply(loaded, official.text)
            library = compile.library(release, loaded, applied, official)
            content = library.read_bytes() if library else None
            platform = platforms.deserved(pinned, elf.needs_of(content))
            ours = graft.contents(release, official, loaded, applied, content, pinned, platform)
            target = folder / release.wheel_filename(pinned, platform)
            with files.workspace(folder) as unverified:
                made = unverified / target.name
                with progress.step(f"writing {target.name}"):
                    graft.write(release, official, ours, made)
                report(made, verify_wheel.verify(made, release.patches))
                made.replace(target)
        known = {"inputs": inputs, "wheel": target.name, **_fingerprint(target)}
        files.write_text(stamp, json.dumps(known))
    return target


def report(path: Path, outcomes: Iterable[Check]) -> None:
    """Verify a wheel, saying each outcome.

    Raises:
        VerifyError: a check failed.
    """
    failed = 0
    with progress.step(f"verifying {path.name}"):
        for check in outcomes:
            progress.note(str(check))
            failed += check.outcome is Outcome.FAILED
    if failed:
        raise VerifyError(f"{path.name}: {failed} check(s) failed")


def _inputs(release: Release, loaded: series.Series, official_sha256: str) -> str:
    # Any module of the command may have a say in the wheel, or in what is checked of it.
    modules = sorted(paths.SCRIPT.with_name("lms_cli").rglob("*.py"))
    tools = [*modules, *compile.PROJECT, toolchain.LOCK, release.lock]
    parts = [
        release,
        loaded.digest(),
        official_sha256,
        os.environ.get("SOURCE_DATE_EPOCH"),
        os.environ.get("CXX"),
        *(files.sha256_of(path) for path in tools),
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _current(folder: Path, stamp: Path, inputs: str) -> Path | None:
    """The wheel that a stamp tells of, if it was made from these inputs and is as it was."""
    try:
        known = json.loads(stamp.read_text(encoding="utf-8"))
        target = folder / known["wheel"]
        made = {"inputs": inputs, "wheel": target.name, **_fingerprint(target)}
        return target if known == made else None
    except (OSError, ValueError, KeyError):
        return None


def _fingerprint(path: Path) -> dict[str, object]:
    """What tells a changed file: its bytes, not its time."""
    return {"size": path.stat().st_size, "sha256": files.sha256_of(path)}
