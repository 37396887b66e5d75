"""Proving that a small wheel is what this checkout makes, and that it can be installed."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

from lms_cli import progress, releases
from lms_cli.addon import small_wheel
from lms_cli.checks import Check, check
from lms_cli.errors import WheelError
from lms_cli.wheel import elf, wheelfile, zipcheck
from lms_cli.wheel.wheelfile import RecordRow, Wheel


def verify(path: Path, patches: Path) -> Iterator[Check]:
    """Run all checks on a small wheel, giving each outcome as it comes.

    Raises:
        LmsError: it is not a small wheel, or what it is compared with cannot be had.
    """
    with Wheel(path) as wheel:
        libraries = _libraries(wheel)
        yield structure(wheel)
        yield record(wheel)
        yield content(wheel, patches, libraries)
        yield system_libraries(wheel, libraries)
        yield compiled(patches, libraries)


def _libraries(wheel: Wheel) -> dict[str, bytes]:
    try:
        supported = list(json.loads(wheel.text(small_wheel.RELEASE_LIST) or ""))
    except ValueError as error:
        raise WheelError(
            f"{wheel.path} is not the small wheel: it has no list of releases"
        ) from error
    return {name: wheel.read(small_wheel.library_member(name)) for name in supported}


def structure(wheel: Wheel) -> Check:
    """The zip file satisfies strict readers."""
    found = list(zipcheck.problems(wheel.path, wheel.zip))
    return check("zip structure", found, f"{len(wheel.members)} members, no gap, no overlap")


def record(wheel: Wheel) -> Check:
    """RECORD lists every file once, with the right hash and size."""
    own = f"{wheel.dist_info}/RECORD"
    expected = {name: wheelfile.record_row(wheel.read(name)) for name in wheel.members}
    expected[own] = RecordRow("", "")
    rows = wheel.record()
    found = [
        f"{name} is missing or has a wrong hash or size"
        for name in sorted(rows.keys() | expected.keys())
        if rows.get(name) != expected.get(name)
    ]
    return check("RECORD", found, f"{len(rows)} rows")


def content(wheel: Wheel, patches: Path, libraries: dict[str, bytes]) -> Check:
    """Every member is what this checkout gives, the libraries aside."""
    parts = []
    for name in libraries:
        release = releases.find(name, patches)
        with small_wheel.texts(release) as official:
            parts.append(small_wheel.part(release, official))
    expected = small_wheel.contents(parts, libraries)
    members = wheel.members.keys() - {f"{wheel.dist_info}/RECORD"}
    found = [f"{name} is in only one of the two" for name in sorted(members ^ expected.keys())]
    found += [
        f"{name} differs"
        for name in sorted(members & expected.keys())
        if wheel.read(name) != expected[name]
    ]
    return check("content", found, f"as this checkout gives it for {', '.join(libraries)}")


def system_libraries(wheel: Wheel, libraries: dict[str, bytes]) -> Check:
    """The platform tag is what the libraries deserve, and they serve every Python."""
    tag = small_wheel.platform_tag(libraries.values())
    found = []
    if wheel.path.name != small_wheel.filename(tag):
        found.append(f"the file's name is not {small_wheel.filename(tag)}")
    for name, library in libraries.items():
        needed = elf.needs(io.BytesIO(library)).libraries
        if any(other.startswith("libpython") for other in needed):
            found.append(f"that of {name} links to libpython, so it serves one Python only")
    facts = ", ".join(
        f"{name}: {small_wheel.platform_tag([one])}" for name, one in libraries.items()
    )
    return check("system libraries", found, facts)


def compiled(patches: Path, libraries: dict[str, bytes]) -> Check:
    """Each library is what this checkout compiles, to the last byte."""
    found = []
    for number, (name, library) in enumerate(libraries.items(), start=1):
        release = releases.find(name, patches)
        doing = f"comparing library {number} of {len(libraries)}, of PyTorch {name}"
        with (
            progress.step(doing),
            small_wheel.texts(release, elf.needs(io.BytesIO(library)).machine) as official,
        ):
            if small_wheel.library(small_wheel.part(release, official), official) != library:
                found.append(f"that of {name} is not what this checkout compiles")
    return check("libraries", found, f"{len(libraries)}, each as this checkout compiles it")
