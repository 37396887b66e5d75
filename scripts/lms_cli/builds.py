"""From an official wheel to a verified LMS wheel, doing only what is not done yet."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from lms_cli import (
    checks,
    compile,
    download,
    elf,
    files,
    graft,
    layout,
    paths,
    progress,
    series,
    verify,
    wheelfile,
    zipcheck,
)
from lms_cli.checks import Check, Outcome
from lms_cli.errors import VerifyError
from lms_cli.releases import Release
from lms_cli.wheelfile import Wheel

# A change in one of these may change the wheel, or what is checked of it.
MAKERS = (checks, compile, elf, graft, layout, series, verify, wheelfile, zipcheck)
WHEEL_SPACE = 1_500_000_000  # bytes: a wheel, its temporary copy, headers and objects


def wheels_folder() -> Path:
    """Where wheels go unless the user names a folder."""
    return paths.home() / "wheels"


def built(release: Release) -> list[Path]:
    """The LMS wheels of a release that are in that folder."""
    return sorted(wheels_folder().glob(f"torch-{release.lms_version}-*.whl"))


def build(release: Release, python: str, folder: Path, quiet: bool = False) -> Path:
    """Make the LMS wheel of a release for one Python, verified; return its path.

    The wheel appears in `folder` only after it passed all checks. If one made from the same inputs
    is there already, it is kept, which is said unless `quiet`.

    Raises:
        LmsError: one of its kinds, by what failed; nothing half-written is left.
    """
    pinned = release.wheel_for(python)
    loaded = series.load(release)
    with files.locked(paths.home() / "builds"):
        target = folder / release.wheel_filename(pinned)
        stamp = (
            paths.home()
            / "stamps"
            / f"{hashlib.sha256(str(target.resolve()).encode()).hexdigest()}.json"
        )
        inputs = _inputs(release, loaded, pinned.sha256)
        if _is_current(target, stamp, inputs):
            if not quiet:
                progress.note(f"{target.name} is up to date")
            return target
        files.require_space(folder, WHEEL_SPACE, f"building {target.name}")
        with Wheel(download.fetch_official(pinned)) as official:
            graft.check_official(release, official)
            applied = series.apply(loaded, official.text)
            library = compile.library(release, loaded, applied, official)
            content = library.read_bytes() if library else None
            ours = graft.contents(release, official, loaded, applied, content, pinned.sha256)
            with files.workspace(folder) as unverified:
                with progress.step(f"writing {target.name}"):
                    made = graft.write(release, official, pinned, ours, unverified)
                report(made, verify.verify(made, release.patches))
                made.replace(target)
        files.write_text(stamp, json.dumps({"inputs": inputs, **_fingerprint(target)}))
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
    tools = [*(Path(str(module.__file__)) for module in MAKERS), compile.PROJECT, release.lock]
    parts = [
        release,
        loaded.digest(),
        official_sha256,
        os.environ.get("SOURCE_DATE_EPOCH"),
        os.environ.get("CXX"),
        *(files.sha256_of(path) for path in tools),
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _is_current(target: Path, stamp: Path, inputs: str) -> bool:
    try:
        known = json.loads(stamp.read_text(encoding="utf-8"))
        return bool(known == {"inputs": inputs, **_fingerprint(target)})
    except (OSError, ValueError):
        return False


def _fingerprint(path: Path) -> dict[str, object]:
    """What tells a changed file: its bytes, not its time."""
    return {"size": path.stat().st_size, "sha256": files.sha256_of(path)}
