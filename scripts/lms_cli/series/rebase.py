"""Making the series of a release that nobody has ported: `lms rebase`.

The work is in a folder of its own until all of it is done: `tree/` holds the files that the hunks
change, as they are to become, and `patches/` a patches folder with nothing but the new series. What
a person has to mend is mended in `tree/`, or in the engine's files; then `--continue` goes on.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from lms_cli import download, files, paths, progress, releases
from lms_cli.environments import locking
from lms_cli.errors import CompileError, SeriesError, UsageError
from lms_cli.releases import OfficialWheel, Release
from lms_cli.series import export, git, porting, series, source_layout, upstream
from lms_cli.series.porting import Outcome, Ported
from lms_cli.wheel import allocator_interface, compile
from lms_cli.wheel.wheelfile import Wheel

STATE = "state.json"


@dataclass(frozen=True)
class State:
    """What is known of a rebase that is under way."""

    old: str  # the release whose series is ported
    hunks: list[Ported]
    blobs: dict[str, str]  # git's names of the tree's files as they were made, by path


@dataclass(frozen=True)
class Work:
    """Where a rebase that is under way works."""

    folder: Path
    patches: Path  # where the series of all releases are, and the new one will be

    @property
    def tree(self) -> Path:
        """The files that the hunks change, at upstream paths."""
        return self.folder / "tree"

    @property
    def staged(self) -> Path:
        """A patches folder with the new release alone."""
        return self.folder / "patches"

    def texts(self) -> dict[str, str]:
        """The tree's files by upstream path."""
        return {
            path.relative_to(self.tree).as_posix(): path.read_text(encoding="utf-8")
            for path in sorted(self.tree.rglob("*"))
            if path.is_file()
        }

    def blobs(self) -> dict[str, str]:
        """Git's names of the tree's files, by upstream path."""
        return {path: git.blob(text) for path, text in self.texts().items()}

    def write(self, state: State) -> None:
        """Keep the state."""
        row = {**state.__dict__, "hunks": [hunk.to_row() for hunk in state.hunks]}
        files.write_text(self.folder / STATE, json.dumps(row, indent=1))

    def read(self) -> State:
        """The state.

        Raises:
            UsageError: no rebase is under way here.
        """
        try:
            row = json.loads((self.folder / STATE).read_text(encoding="utf-8"))
            return State(**{**row, "hunks": [Ported.from_row(hunk) for hunk in row["hunks"]]})
        except OSError as error:
            raise UsageError(
                f"no rebase to PyTorch {self.folder.name} is under way",
                f"Start one: lms rebase {self.folder.name}",
            ) from error


def work_of(version: str, patches: Path) -> Work:
    """Where the rebase to a release works."""
    return Work(paths.home() / "rebase" / version, patches)


def start(version: str, old: Release, given: list[Path], patches: Path) -> list[Ported]:
    """Port the hunks of a release to a new one, as far as that needs nobody.

    Args:
        version: the new release.
        old: the release whose series is ported.
        given: official wheels on disk; none for those of the index.
        patches: the folder of the series.

    Raises:
        UsageError: the release is listed already, or a rebase to it is under way.
        LmsError: one of its kinds, by what failed; nothing is left behind.
    """
    work = work_of(version, patches)
    if work.folder.exists():
        raise UsageError(
            f"a rebase to PyTorch {version} is under way in {work.folder}",
            f"Go on with `lms rebase {version} --continue`, or give it up with `--abort`.",
        )
    if version in releases.load(patches) or (patches / f"v{version}").exists():
        raise UsageError(
            f"there is a series for PyTorch {version} already",
            f"To make it anew, remove {patches / f'v{version}'} and its row in "
            f"{releases.FILE_NAME} first.",
        )
    wheels = upstream.on_disk(given) if given else upstream.listed(version)
    with (
        progress.step(f"porting the series of PyTorch {old.version} to {version}"),
        files.folder_beside(work.folder) as temporary,
    ):
        begun = Work(temporary, patches)
        release, official = upstream.describe(version, wheels, begun.staged)
        with official, Wheel(download.fetch_texts(_any_wheel(old))) as before:
            reports = _port(begun, series.load(old), before, official)
        files.write_text(begun.staged / releases.FILE_NAME, f'default: "{version}"\nreleases:\n')
        releases.add(release, begun.staged)
        begun.write(State(old.version, reports, begun.blobs()))
    return reports


def finish(version: str, patches: Path) -> Release:
    """Make patches of what is in the tree, compile, lock, and publish the new series.

    Raises:
        UsageError: no rebase to this release is under way.
        SeriesError: a file still has conflicts, or the engine does not forward a function.
        CompileError: the engine does not compile for this release.
        NetworkError: the packages of the release cannot be locked.
    """
    work = work_of(version, patches)
    state = work.read()
    release = releases.find(version, work.staged)
    with Wheel(download.fetch_texts(_any_wheel(release))) as official:
        _write_series(work, release, state, official)
        export.update(release, official.text)
        loaded = series.load(release)
        applied = series.apply(loaded, official.text)
        if not release.lock.exists():
            locking.lock(release)
        lost = allocator_interface.findings(official, loaded, release)[0]
        if lost:
            raise SeriesError(
                f"PyTorch {version} has functions of the allocator that the engine does not "
                "forward:\n" + "\n".join(f"    {declaration}" for declaration in lost),
                f"Add them to patches/{series.NEW_FILES}/{allocator_interface.COMPAT}, then "
                f"`lms rebase {version} --continue`.",
            )
        try:
            compile.library(release, loaded, applied, official)
        except CompileError as error:
            raise CompileError(
                str(error),
                "Mend the engine, or the hunks in "
                f"{work.tree}, then `lms rebase {version} --continue`.",
            ) from error
    with files.folder_beside(patches / release.tag) as temporary:
        shutil.copytree(release.series, temporary, dirs_exist_ok=True)
    releases.add(release, patches)
    shutil.rmtree(work.folder)
    return releases.find(version, patches)


def abort(version: str, patches: Path) -> Path | None:
    """Give a rebase up; what a person changed in its tree is kept.

    Returns:
        The folder that keeps it, None if nothing was changed.

    Raises:
        UsageError: no rebase to this release is under way.
    """
    work = work_of(version, patches)
    if work.blobs() == work.read().blobs:
        shutil.rmtree(work.folder)
        return None
    number = 1
    while (kept := work.folder.with_name(f"{version}.aborted-{number}")).exists():
        number += 1
    return work.folder.rename(kept)


def nearest(version: str, patches: Path) -> Release:
    """The release to port from: the newest before the new one, else the first of all.

    Raises:
        UsageError: the version is none.
    """
    from packaging.version import InvalidVersion, Version

    listed = list(releases.load(patches).values())
    try:
        wanted = Version(version)
    except InvalidVersion as error:
        raise UsageError(f"{version} is not a version of PyTorch", "Give one as 2.12.1.") from error
    older = [release for release in listed if Version(release.version) < wanted]
    return older[-1] if older else listed[0]


def _any_wheel(release: Release) -> OfficialWheel:
    """A wheel to take texts from, the same for all Pythons; one that is known to be there."""
    return next(iter(release.wheels.values()))


def _port(work: Work, loaded: series.Series, before: Wheel, after: Wheel) -> list[Ported]:
    reports: list[Ported] = []
    for hunks in porting.hunks_of(loaded.patches):
        member = source_layout.member(hunks.path)
        old, new = before.text(member), after.text(member)
        text, found = porting.port(
            hunks,
            source_layout.unguarded(old or ""),
            None if new is None else source_layout.unguarded(new),
        )
        reports += found
        if text is not None:
            files.write_text(work.tree / hunks.path, text)
    return reports


def _write_series(work: Work, release: Release, state: State, official: Wheel) -> None:
    """Make patches of the differences between upstream's files and the tree's."""
    after = work.texts()
    gone = {hunk.file: hunk.patch for hunk in state.hunks if hunk.outcome is Outcome.GONE}
    unmended = sorted(
        {path for path in gone if path not in after}
        | {path for path, text in after.items() if porting.has_conflicts(text)}
    )
    if unmended:
        raise SeriesError(
            f"{len(unmended)} file(s) have to be mended first: {', '.join(unmended)}",
            f"Edit them in {work.tree}, then `lms rebase {release.version} --continue`. Where a "
            "file is gone, put the one that took its place there too, and an empty one for it.",
        )
    old = series.load(releases.find(state.old, work.patches))
    owners = {hunks.path: hunks.patch.name for hunks in porting.hunks_of(old.patches)}
    successor = next(iter(gone.values()), "")  # of files that only the new release has
    names = []
    for patch in old.patches:
        mine = [path for path in after if owners.get(path, successor) == patch.name]
        before = {
            path: source_layout.unguarded(official.text(source_layout.member(path)) or "")
            for path in mine
        }
        diff = git.diff(before, {path: after[path] for path in mine})
        if diff:
            header = patch.text.partition("diff --git ")[0]
            files.write_text(release.series / patch.name, header + diff)
            names.append(patch.name)
    order = "# Order in which the patches of this release apply.\n" + "\n".join(names) + "\n"
    files.write_text(release.series / series.ORDER_FILE, order)
    engine = work.staged / series.NEW_FILES
    if not engine.exists():
        engine.symlink_to((work.patches / series.NEW_FILES).resolve())
