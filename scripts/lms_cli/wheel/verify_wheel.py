"""Proving that a wheel is the official one plus our files, and that it can work.

The official wheel is pinned by sha256, so a member whose compressed bytes are the official ones is
proven to the last bit, and its RECORD row must be the official row.
"""

from __future__ import annotations

import io
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lms_cli import download, releases
from lms_cli.checks import Check, Outcome
from lms_cli.checks import check as _check
from lms_cli.environments import lms_environment, locks, virtual
from lms_cli.errors import LmsError, UsageError
from lms_cli.releases import OfficialWheel, Release
from lms_cli.series import series
from lms_cli.wheel import allocator_interface, compile, elf, graft, platforms, wheelfile, zipcheck
from lms_cli.wheel.graft import LIBRARY_MEMBER, Manifest
from lms_cli.wheel.wheelfile import Wheel


@dataclass(frozen=True)
class Subject:
    """A wheel under test and what it is measured against."""

    wheel: Wheel
    manifest: Manifest
    release: Release
    pinned: OfficialWheel
    platform: str  # the platform tag in its name
    official: Wheel


def verify(path: Path, patches: Path) -> Iterator[Check]:
    """Run all checks on an LMS wheel, giving each outcome as it comes.

    Raises:
        LmsError: it is not an LMS wheel, or what it is compared with cannot be had.
    """
    with Wheel(path) as wheel:
        manifest = Manifest.read(wheel)
        release = releases.find(manifest.release, patches)
        platform = path.stem.rpartition("-")[2]
        pinned = _pinned(release, path, platform)
        with Wheel(download.fetch_official(pinned)) as official:
            subject = Subject(wheel, manifest, release, pinned, platform, official)
            for check in CHECKS:
                yield check(subject)


def _pinned(release: Release, path: Path, platform: str) -> OfficialWheel:
    for official in release.official:
        is_named = release.wheel_filename(official, platform) == path.name
        if is_named and platform in platforms.tags(official.machine):
            return official
    raise UsageError(
        f"{path.name} is not the name of an LMS wheel of PyTorch {release.version}",
        f"It would be, for example, {release.wheel_filename(release.official[0])}.",
    )


def structure(subject: Subject) -> Check:
    """The zip file satisfies strict readers."""
    found = list(zipcheck.problems(subject.wheel.path, subject.wheel.zip))
    return _check(
        "zip structure", found, f"{len(subject.wheel.members)} members, no gap, no overlap"
    )


def label(subject: Subject) -> Check:
    """All places say the same version; the commit is the pinned one."""
    version = subject.release.lms_version
    expected = {
        "dist-info": (subject.wheel.dist_info, graft.dist_info_folder(subject.release)),
        "manifest": (subject.manifest.version, version),
        "official sha256": (subject.manifest.official_sha256, subject.pinned.sha256),
        "METADATA": (
            subject.wheel.text(f"{subject.wheel.dist_info}/METADATA"),
            graft.relabel_metadata(
                subject.official.text(f"{subject.official.dist_info}/METADATA") or "",
                subject.release,
            ),
        ),
        "WHEEL": (
            subject.wheel.text(f"{subject.wheel.dist_info}/WHEEL"),
            graft.relabel_wheel(
                subject.official.text(f"{subject.official.dist_info}/WHEEL") or "",
                subject.pinned,
                subject.platform,
            ),
        ),
        graft.VERSION_MEMBER: (
            subject.wheel.text(graft.VERSION_MEMBER),
            graft.relabel_version(
                subject.official.text(graft.VERSION_MEMBER) or "", subject.release
            ),
        ),
    }
    found = [f"{place} differs" for place, (is_, should) in expected.items() if is_ != should]
    try:
        graft.check_official(subject.release, subject.wheel)
    except LmsError as error:
        found.append(str(error))
    return _check("label", found, f"{version}, upstream commit {subject.release.commit[:12]}")


def untouched(subject: Subject) -> Check:
    """Every member not listed as ours has the CRC, size and compressed bytes of the official."""
    ours = set(subject.manifest.changed) | _dist_info_members(subject)
    names = {
        graft.renamed(name, subject.official, subject.wheel.dist_info): info
        for name, info in subject.official.members.items()
    }
    found = [f"{name} is missing" for name in names if name not in subject.wheel.members]
    listed = ours | set(subject.manifest.added)
    found += [
        f"{name} is not listed as ours"
        for name in subject.wheel.members
        if name not in names and name not in listed
    ]
    found += [
        f"{name} is listed as added, but is upstream's"
        for name in subject.manifest.added
        if name in names
    ]
    same = [name for name in names if name not in ours and name in subject.wheel.members]
    for name in same:
        mine, theirs = subject.wheel.members[name], names[name]
        if (mine.CRC, mine.file_size) != (theirs.CRC, theirs.file_size):
            found.append(f"{name} has another CRC or size than upstream's")
        elif _crc(subject.wheel.raw(mine)) != _crc(subject.official.raw(theirs)):
            found.append(f"{name} is damaged")
    return _check("untouched members", found, f"{len(same)} have the official CRC, size and bytes")


def _crc(chunks: Iterable[bytes]) -> int:
    value = 0
    for chunk in chunks:
        value = zlib.crc32(chunk, value)
    return value


def _dist_info_members(subject: Subject) -> set[str]:
    return {
        f"{subject.wheel.dist_info}/{name}"
        for name in ("METADATA", "RECORD", "WHEEL", graft.MANIFEST)
    }


def series_content(subject: Subject) -> Check:
    """What is listed as ours is what this checkout's series gives, the library aside."""
    loaded = series.load(subject.release)
    applied = series.apply(loaded, subject.official.text)
    expected = {**applied.added, **applied.changed}
    listed = set(subject.manifest.added) | set(subject.manifest.changed)
    difference = (set(expected) | {LIBRARY_MEMBER, graft.VERSION_MEMBER}) ^ (
        listed | {LIBRARY_MEMBER}
    )
    found = [f"{name} is ours in one, not in the other" for name in sorted(difference)]
    found += [
        name
        for name, text in expected.items()
        if name in listed and subject.wheel.text(name) != text
    ]
    if loaded.digest() != subject.manifest.series_sha256:
        found.append("it was built from another state of the series: build it again")
    added, changed = len(subject.manifest.added), len(subject.manifest.changed)
    return _check(
        "series",
        found,
        f"{added} members added, {changed} changed, as {subject.release.tag} gives them",
    )


def allocator(subject: Subject) -> Check:
    """The engine forwards every function of the allocator that the release has."""
    loaded = series.load(subject.release)
    return _check(
        "allocator", *allocator_interface.findings(subject.official, loaded, subject.release)
    )


def record(subject: Subject) -> Check:
    """RECORD lists every file once, with the right hash and size."""
    wheel = subject.wheel
    rows = wheel.record()
    own = rows.pop(f"{wheel.dist_info}/RECORD", None)
    found = (
        [] if own == wheelfile.RecordRow("", "") else ["RECORD's own row is missing or not empty"]
    )
    members = {name for name in wheel.members if not name.endswith("/")} - {
        f"{wheel.dist_info}/RECORD"
    }
    found += [f"{name} is in only one of wheel and RECORD" for name in sorted(members ^ set(rows))]
    ours = _dist_info_members(subject) | set(subject.manifest.added) | set(subject.manifest.changed)
    theirs = subject.official.record()
    official = {
        graft.renamed(name, subject.official, wheel.dist_info): row for name, row in theirs.items()
    }
    for name in members & set(rows):
        expected = wheelfile.record_row(wheel.read(name)) if name in ours else official.get(name)
        if rows[name] != expected:
            found.append(f"{name} has a wrong hash or size")
    return _check("RECORD", found, f"{len(rows)} rows")


def symbols(subject: Subject) -> Check:
    """Every symbol without a version that the library needs is in this wheel or CUDA's runtime."""
    if LIBRARY_MEMBER not in subject.wheel.members:
        return _check("symbols", [], "the series has no library")
    needed = elf.needs(io.BytesIO(subject.wheel.read(LIBRARY_MEMBER)))
    missing = set(needed.symbols)
    for package in subject.release.cuda_headers:
        path = download.fetch_locked(subject.release.lock, package, subject.pinned.machine)
        with Wheel(path) as cuda:
            _remove_provided(cuda, needed, missing)
    _remove_provided(subject.wheel, needed, missing)
    found = [
        f"{name} is provided by nothing in {', '.join(needed.libraries)}"
        for name in sorted(missing)
    ]
    return _check("symbols", found, f"{len(needed.symbols)} undefined, all provided")


def _remove_provided(wheel: Wheel, needed: elf.Needs, missing: set[str]) -> None:
    for name in wheel.members:
        if missing and name.rpartition("/")[2] in needed.libraries:
            with tempfile.TemporaryFile() as unpacked:
                with wheel.zip.open(name) as packed:
                    shutil.copyfileobj(packed, unpacked, wheelfile.CHUNK)
                missing -= elf.provided(unpacked, frozenset(missing))


def system_libraries(subject: Subject) -> Check:
    """The systems that the platform tag names have what the library asks of them."""
    name = "system libraries"
    if LIBRARY_MEMBER not in subject.wheel.members:
        return _check(name, [], "the series has no library")
    needed = elf.needs(io.BytesIO(subject.wheel.read(LIBRARY_MEMBER)))
    found = [
        f"it needs {symbol}, which systems of {subject.platform} may lack"
        for symbol in platforms.too_new(needed, subject.platform)
    ]
    if needed.run_path != compile.run_path(subject.release):
        found.append(f"run path is {needed.run_path}, not {compile.run_path(subject.release)}")
    if any(library.startswith("libpython") for library in needed.libraries):
        found.append("it links to libpython, so it serves one Python only")
    facts = (
        f"{platforms.oldest([needed])}, tagged {subject.platform}; "
        f"needs {' '.join(needed.libraries)}; run path {needed.run_path}"
    )
    promised = subject.pinned.promised_platform
    if subject.platform != promised:
        facts += f"; NOT portable as {promised}: build/README.md says how"
    return _check(name, found, facts)


def requirements(subject: Subject) -> Check:
    """Every requirement in METADATA is met by the version locked for this release."""
    from email.parser import HeaderParser

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    python = releases.dotted(subject.pinned.python).rstrip("t")
    pins = locks.read(subject.release.lock, python)
    metadata = HeaderParser().parsestr(
        subject.wheel.text(f"{subject.wheel.dist_info}/METADATA") or ""
    )
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": subject.pinned.machine,
        "extra": "",
    }
    found = []
    count = 0
    for text in metadata.get_all("Requires-Dist", []):
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate(environment):
            continue
        count += 1
        pin = pins.get(canonicalize_name(requirement.name))
        if pin is None or not requirement.specifier.contains(pin.version):
            found.append(
                f"{requirement} is not met by {pin.version if pin else 'any package'} in the lock"
            )
    return _check("requirements", found, f"{count} met by {subject.release.lock.name}")


def pip_check(subject: Subject) -> Check:
    """`pip check` passes in a clean environment of this wheel and the locked packages.

    pip reads metadata only, so the environment holds the dist-info folders: this wheel's own, and
    links to those of the packages that are installed in the LMS environment of the running Python.
    """
    name = "pip check"
    environment = lms_environment.of(subject.release)
    here = (releases.running_python(), releases.MACHINE)
    is_here = (subject.pinned.python, subject.pinned.machine) == here
    if not is_here or not environment.has_locked_packages():
        reason = "the locked packages are not installed for this Python (`lms test` installs them)"
        return Check(name, Outcome.SKIPPED, reason)
    with tempfile.TemporaryDirectory() as folder:
        clean = lms_environment.Environment(Path(folder) / "clean")
        virtual.create_venv(clean.folder, with_pip=False)
        for installed in environment.site_packages.glob("*.dist-info"):
            if not installed.name.startswith("torch-"):
                (clean.site_packages / installed.name).symlink_to(installed)
        prefix = f"{subject.wheel.dist_info}/"
        for member in subject.wheel.members:
            if member.startswith(prefix):
                subject.wheel.zip.extract(member, clean.site_packages)
        try:
            lms_environment.pip_run(clean, ["--quiet", "check"], "check the requirements")
        except LmsError as error:
            return Check(name, Outcome.FAILED, str(error))
        count = len(list(clean.site_packages.glob("*.dist-info")))
        return Check(name, Outcome.PASSED, f"{count} packages in a clean environment fit together")


CHECKS: tuple[Callable[[Subject], Check], ...] = (
    structure,
    label,
    untouched,
    series_content,
    allocator,
    record,
    symbols,
    system_libraries,
    requirements,
    pip_check,
)
