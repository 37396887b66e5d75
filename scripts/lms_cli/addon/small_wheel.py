"""The small wheel, torch_lms: what an official PyTorch needs for LMS, added to it at run time.

It holds the library of each release, the Python files that the series adds, once, and the functions
that the series changes. What puts them in place is in `build/addon/`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from lms_cli import download, paths
from lms_cli.addon import changed_functions
from lms_cli.errors import SeriesError, UsageError
from lms_cli.releases import MACHINE, Release, running_python
from lms_cli.series import series
from lms_cli.series.series import Applied, Series
from lms_cli.wheel import compile, elf, graft, platforms
from lms_cli.wheel.compile import HEADERS, LIBRARY
from lms_cli.wheel.wheelfile import Wheel

PACKAGE = "torch_lms"
TEMPLATE = paths.BUILD / "addon"
RELEASES = f"{PACKAGE}/releases"  # a folder for each release, and their list
RELEASE_LIST = f"{RELEASES}/releases.json"
EXPORTS = "torch/cuda/__init__.py"  # build/addon/ does by hand what the series changes here
FUNCTIONS = "torch/cuda/memory.py"  # the wheel holds the functions that the series changes here


@dataclass(frozen=True)
class Part:
    """What goes into the wheel for one release, the library aside."""

    release: Release
    series: Series
    applied: Applied
    functions: str  # those of FUNCTIONS that the series changes, as Python source

    @property
    def python(self) -> dict[str, str]:
        """The series' new Python files; the same for all releases."""
        added = self.applied.added.items()
        return {name: text for name, text in added if not name.startswith(HEADERS)}


def texts(release: Release, machine: str = MACHINE) -> Wheel:
    """Headers and Python files of an official wheel, for any Python: for this they are alike.

    Raises:
        UsageError: there is none for the machine.
        NetworkError, WheelError: it cannot be had.
    """
    wheels = release.wheels_on(machine)
    if not wheels:
        raise UsageError(
            f"PyTorch {release.version} has no official wheel on {machine}",
            "Leave the release out, or name another --machine.",
        )
    pinned = wheels.get(running_python()) or next(iter(wheels.values()))
    return Wheel(download.fetch_texts(pinned))


def part(release: Release, official: Wheel) -> Part:
    """What goes into the wheel for a release, from the texts of its official wheel.

    Raises:
        SeriesError: the series does not apply, or does what the small wheel cannot do.
        WheelError: the official wheel is not the one that was pinned.
    """
    graft.check_official(release, official)
    loaded = series.load(release)
    applied = series.apply(loaded, official.text)
    changed = {name for name in applied.changed if not name.startswith(HEADERS)}
    if changed - {EXPORTS, FUNCTIONS}:
        raise SeriesError(
            f"PyTorch {release.version}: the small wheel cannot change "
            f"{', '.join(sorted(changed - {EXPORTS, FUNCTIONS}))}",
            f"Let the series change {EXPORTS} and functions of {FUNCTIONS} only.",
        )
    functions = ""
    if FUNCTIONS in changed:
        before, after = official.text(FUNCTIONS) or "", applied.changed[FUNCTIONS]
        functions = changed_functions.changed(FUNCTIONS, before, after)
    return Part(release, loaded, applied, functions)


def library(part: Part, official: Wheel) -> bytes:
    """The compiled library of a release.

    Raises:
        SeriesError: the series has nothing to compile.
        CompileError: it does not compile.
    """
    path = compile.library(part.release, part.series, part.applied, official)
    if path is None:
        raise SeriesError(f"the series of PyTorch {part.release.version} has nothing to compile")
    return path.read_bytes()


def version() -> str:
    """The small wheel's own version."""
    metadata = (TEMPLATE / "dist-info" / "METADATA").read_text(encoding="utf-8")
    return str(HeaderParser().parsestr(metadata)["Version"])


def dist_info() -> str:
    """Name of the small wheel's dist-info folder."""
    return f"{PACKAGE}-{version()}.dist-info"


def filename(platform: str) -> str:
    """The small wheel's file name."""
    return f"{PACKAGE}-{version()}-py3-none-{platform}.whl"


def library_member(release: str) -> str:
    """Where the library of a release is in the wheel."""
    return f"{RELEASES}/{release}/{LIBRARY}"


def contents(parts: list[Part], libraries: dict[str, bytes]) -> dict[str, bytes]:
    """Every member of the small wheel, RECORD aside.

    Args:
        parts: one for each release, the newest last.
        libraries: by release.
    """
    supported = {
        part.release.version: {"commit": part.release.commit, "cuda": part.release.cuda}
        for part in parts
    }
    texts = {RELEASE_LIST: _json(supported), **_template(), **_dist_info(parts, libraries)}
    for part in parts:
        texts[f"{RELEASES}/{part.release.version}/{Path(FUNCTIONS).name}"] = part.functions
        texts |= {f"{PACKAGE}/{name}": text for name, text in part.python.items()}
    return {
        **{name: text.encode() for name, text in texts.items()},
        **{library_member(name): content for name, content in libraries.items()},
    }


def _template() -> dict[str, str]:
    """The members that are files of `TEMPLATE`."""
    return {
        f"{place}/{path.name}": path.read_text(encoding="utf-8")
        for folder, place in ((PACKAGE, PACKAGE), ("dist-info", dist_info()))
        for path in TEMPLATE.joinpath(folder).iterdir()
        if path.is_file()
    }


def _dist_info(parts: list[Part], libraries: dict[str, bytes]) -> dict[str, str]:
    """The members of the dist-info folder that are not."""
    digests = {part.release.version: {"series_sha256": part.series.digest()} for part in parts}
    texts = {
        graft.MANIFEST: _json({"version": version(), "releases": digests}),
        "WHEEL": "Wheel-Version: 1.0\nGenerator: lms\nRoot-Is-Purelib: false\n"
        f"Tag: py3-none-{platform_tag(libraries.values())}\n",
        "licenses/LICENSE": (paths.ROOT / "LICENSE").read_text(encoding="utf-8"),
    }
    return {f"{dist_info()}/{name}": text for name, text in texts.items()}


def _json(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"


def platform_tag(libraries: Iterable[bytes]) -> str:
    """The tag of the oldest systems that all of the libraries run on."""
    return platforms.oldest(elf.needs(io.BytesIO(content)) for content in libraries)
