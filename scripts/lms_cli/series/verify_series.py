"""Proving that a series fits what upstream published: every official wheel of its release.

One wheel's headers and Python files are read and checked against its RECORD; of the others, the
central directory tells whether what matters to the series is the same.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lms_cli import checks, download, files, progress, releases
from lms_cli.checks import Check, Findings, Outcome
from lms_cli.download import Directory
from lms_cli.errors import LmsError, SeriesError
from lms_cli.releases import Release
from lms_cli.series import export, git, series, source_layout
from lms_cli.series.series import Series
from lms_cli.series.source_layout import Kind
from lms_cli.wheel import allocator_interface, graft
from lms_cli.wheel.wheelfile import Wheel

HEADERS = ("torch/include/",)


@dataclass(frozen=True)
class Subject:
    """A series under test and what it is measured against."""

    release: Release
    loaded: Series
    official: Wheel  # the texts of one official wheel


def verify(release: Release) -> Iterator[Check]:
    """Check the series of a release, giving each outcome as it comes, up to the first failure.

    Raises:
        LmsError: there is no series, or what it is compared with cannot be had.
    """
    loaded = series.load(release)
    with Wheel(download.any_texts(release)) as official:
        subject = Subject(release, loaded, official)
        for name, find in CHECKS.items():
            outcome = checks.attempt(name, functools.partial(find, subject))
            yield outcome
            if outcome.outcome is Outcome.FAILED:
                return


def base(subject: Subject) -> Findings:
    """The official wheel was built from the commit that the series is based on."""
    graft.check_official(subject.release, subject.official)
    return [], f"{subject.release.tag}, commit {subject.release.commit[:12]}"


def hunks(subject: Subject) -> Findings:
    """Each hunk fits exactly where it says."""
    applied = series.apply(subject.loaded, subject.official.text)
    return [], f"{len(applied.changed)} members change, {len(applied.added)} are new"


def allocator(subject: Subject) -> Findings:
    """The engine forwards every function of the allocator that the release has."""
    return allocator_interface.findings(subject.official, subject.loaded, subject.release)


def wheels(subject: Subject) -> Findings:
    """All official wheels have the same files that the series touches, and the same headers.

    Headers that a build generates differ between machines; only those for ours are compared.
    """
    touched = {graft.VERSION_MEMBER, *series.apply(subject.loaded, subject.official.text).changed}

    def matters(directory: Directory, machine: str) -> Directory:
        headers = HEADERS if machine == releases.MACHINE else ()
        return {
            name: value
            for name, value in directory.items()
            if name in touched or name.startswith(headers)
        }

    read = {name: (info.CRC, info.file_size) for name, info in subject.official.members.items()}
    found = []
    pinned = subject.release.official
    with progress.step(f"comparing {len(pinned)} wheels of PyTorch {subject.release.version}"):
        for wheel in pinned:
            expected = matters(read, wheel.machine)
            there = matters(download.fetch_directory(wheel), wheel.machine)
            found += [
                f"{wheel.filename} has another {name} than {subject.official.path.name}"
                for name in sorted({*expected, *there})
                if there.get(name) != expected.get(name)
            ]
    return found, f"{len(pinned)} have the same headers and the same {len(touched)} touched files"


def hashes(subject: Subject) -> Findings:
    """The record has git's hashes of upstream's files before and after the series."""
    refreshed = export.refreshed(subject.loaded, subject.official.text)
    actual = export.record(subject.release, refreshed)
    export.require_current(subject.release, actual)
    return [], f"{len(actual.changed)} files before and after are as {export.RECORD} says"


def git_am(subject: Subject) -> Findings:
    """`git am` applies the export to upstream's files and makes what the record says.

    Hunks on files that no wheel has can be tried in a source tree only; they are left out.
    """
    changed = export.record(subject.release, subject.loaded).changed
    absent = {path for path in changed if source_layout.kind(path) is Kind.ABSENT}
    patches = [
        patch
        for patch in subject.loaded.patches
        if {file.path for file in series.parse(patch)} - absent
    ]
    mails = export.mails(dataclasses.replace(subject.loaded, patches=tuple(patches)))
    before = {
        path: source_layout.unguarded(subject.official.text(source_layout.member(path)) or "")
        for path in sorted(changed.keys() - absent)
    }
    after = {path: changed[path].after for path in before} | export.new_blobs(subject.loaded)
    made = _after_git_am(before, mails, absent)
    found = [
        f"{path} is not what {export.RECORD} says"
        for path in sorted({*made, *after})
        if made.get(path) != after.get(path)
    ]
    return found, f"{len(mails)} patches apply and give {len(made)} files"


def _after_git_am(
    before: dict[str, str], mails: dict[str, str], absent: set[str]
) -> dict[str, str]:
    """Git's hash of each file by path, after `git am` in a repository with the given texts."""
    excluded = [f"--exclude={path}" for path in sorted(absent)]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        for path, text in before.items():
            files.write_text(tree / path, text)
        tree.mkdir(exist_ok=True)
        git.run("init", "--quiet", folder=tree)
        git.run("add", "--all", folder=tree)
        git.run("commit", "--quiet", "--allow-empty", "--message=upstream", folder=tree)
        for name, text in mails.items():
            mail = Path(folder) / name
            files.write_text(mail, text)
            try:
                git.run("am", "--quiet", *excluded, mail, folder=tree)
            except LmsError as error:
                raise SeriesError(f"{name} does not apply: {error}") from error
        rows = git.run("ls-tree", "-r", "HEAD", folder=tree).splitlines()
    columns = (row.split(None, 3) for row in rows)  # mode, type, hash, path
    return {path: blob for _, _, blob, path in columns}


CHECKS: dict[str, Callable[[Subject], Findings]] = {
    "base": base,
    "hunks": hunks,
    "allocator": allocator,
    "official wheels": wheels,
    "hashes": hashes,
    "git am": git_am,
}
