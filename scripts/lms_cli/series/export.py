"""The series of a release as patches for `git am`, and the record of what it does to upstream.

The patches are a function of the series alone, so they are made on demand. What cannot be made
without upstream's text are git's hashes of the touched files before and after: they stand in the
index lines of the patches, and in the record beside them, which says that nobody edited the patches
since the hashes were worked out. New files need no record: they are what they are.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lms_cli import files
from lms_cli.errors import SeriesError, UsageError
from lms_cli.releases import Release
from lms_cli.series import git, series, source_layout
from lms_cli.series.series import ORDER_FILE, Patch, Series
from lms_cli.series.source_layout import Kind

RECORD = "export.yaml"
RECORD_HEAD = (
    "# What the series does to upstream's files: git's hash of each before and after, and sha256 "
    "of each exported patch.\n"
    "# Written by `lms export`, checked by `lms lint` and `lms verify`.\n"
)
NEW_FILES_PATCH = "large-model-support.patch"
NEW_FILES_MESSAGE = """\
Add the engine of Large Model Support

The engine and its interface in Python, all of it new files. No build file
changes: upstream's CMake compiles every source in aten/src/ATen/cuda/ and
aten/src/ATen/cuda/detail/. The patches that follow connect it to what is
there.

Why a patch: the engine is a layer on the dispatcher, StorageImpl and the
caching allocator, which are C++ interfaces of libtorch.

Upstream-status: not submitted.
"""
MAIL_HEAD = (
    f"From {'0' * 40} Mon Sep 17 00:00:00 2001\n"
    "From: PyTorch LMS <lms@pytorch-lms.invalid>\n"
    "Date: Thu, 1 Jan 1970 00:00:00 +0000\n"
    "Subject: [PATCH] "
)
NEW_FOLDER = "Name an empty or a new folder with --out."
NO_BLOB = "0" * 40
REGULAR_FILE = "100644"
CHANGED_FILE = re.compile(
    r"^diff --git a/(?P<path>\S+) b/(?P=path)\n"
    r"(?:index (?P<before>[0-9a-f]+)\.\.(?P<after>[0-9a-f]+)(?: (?P<mode>\d+))?\n)?",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Blobs:
    """Git's hashes of one upstream file's text."""

    before: str
    after: str


@dataclass(frozen=True)
class Record:
    """What a series does to upstream's tree."""

    tag: str
    commit: str
    changed: dict[str, Blobs]  # by upstream path
    patches: dict[str, str]  # sha256 of each exported patch by name, in the order of application
    added: dict[str, str] = field(default_factory=dict)  # hash of each new file; not committed

    def to_yaml(self) -> str:
        """The record as text, always the same for the same content."""
        import yaml

        row = {
            "base": {"tag": self.tag, "commit": self.commit},
            "changed": {path: dataclasses.asdict(self.changed[path]) for path in self.changed},
            "added": self.added,
            "patches": self.patches,
        }
        content = {name: value for name, value in row.items() if value}
        text: str = yaml.safe_dump(content, sort_keys=False)
        return RECORD_HEAD + text


def read_record(release: Release) -> Record:
    """The record that is committed beside a release's series.

    Raises:
        SeriesError: there is none, or it is malformed.
    """
    import yaml

    path = release.series / RECORD
    try:
        row: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        return Record(
            tag=row["base"]["tag"],
            commit=row["base"]["commit"],
            changed={name: Blobs(**blobs) for name, blobs in row.get("changed", {}).items()},
            patches=dict(row.get("patches", {})),
        )
    except OSError as error:
        raise SeriesError(f"the series has no record: {error}", remedy(release)) from error
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise SeriesError(f"{path} is malformed: {error!r}", remedy(release)) from error


def remedy(release: Release) -> str:
    """How to go on after the series was changed."""
    return (
        f"`lms export {release.version}` works out the hashes from the official wheel and writes "
        f"{RECORD}; commit what it changes in {release.series}."
    )


def record(release: Release, loaded: Series) -> Record:
    """The record of a series as its patches state it in their index lines.

    Raises:
        SeriesError: a patch has no complete index line, or two patches change the same file.
    """
    changed: dict[str, Blobs] = {}
    by: dict[str, str] = {}
    for patch in loaded.patches:
        for match in _changed_files(patch):
            path, blobs = match["path"], Blobs(match["before"] or "", match["after"] or "")
            if path in by:
                raise SeriesError(
                    f"{path} is changed by two patches, {by[path]} and {patch.name}",
                    "Make them one: what a file is before and after is then one line of the diff.",
                )
            if len(blobs.before) != len(NO_BLOB) or len(blobs.after) != len(NO_BLOB):
                raise SeriesError(
                    f"{patch.name} has no index line with complete hashes for {path}",
                    remedy(release),
                )
            by[path], changed[path] = patch.name, blobs
    return Record(
        tag=release.tag,
        commit=release.commit,
        changed=dict(sorted(changed.items())),
        patches={patch.name: _sha256(mail(patch.message, patch.diff)) for patch in loaded.patches},
    )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def require_current(release: Release, actual: Record) -> None:
    """Raise `SeriesError` unless the committed record is the one that it should be."""
    recorded = read_record(release)
    found = []
    if (recorded.tag, recorded.commit) != (actual.tag, actual.commit):
        found.append(
            f"its base is {recorded.tag} at {recorded.commit}, "
            f"releases.yaml says {actual.tag} at {actual.commit}"
        )
    found += _unequal(recorded.patches, actual.patches, "was changed since")
    found += _unequal(recorded.changed, actual.changed, "has other hashes")
    if not found and list(recorded.patches) != list(actual.patches):
        found.append("the patches are in another order")
    if found:
        raise SeriesError(f"{RECORD} is not of this series: {'; '.join(found)}", remedy(release))


def is_current(release: Release) -> bool:
    """Whether the committed record is that of the series on disk."""
    try:
        require_current(release, record(release, series.load(release)))
    except SeriesError:
        return False
    return True


def _unequal(recorded: Mapping[str, object], actual: Mapping[str, object], what: str) -> list[str]:
    names = sorted({*recorded, *actual})
    return [
        f"{name} {what if name in recorded and name in actual else 'is in only one of them'}"
        for name in names
        if recorded.get(name) != actual.get(name)
    ]


def refreshed(loaded: Series, read: Callable[[str], str | None]) -> Series:
    """A series with the index lines that the texts of a release give it.

    Args:
        loaded: the series; files that no wheel has keep their index lines.
        read: gives the text of a member of the official wheel, None if there is no such member.

    Raises:
        SeriesError: it does not apply to these texts.
    """
    changed = series.apply(loaded, read).changed

    def with_blobs(match: re.Match[str]) -> str:
        path = match["path"]
        if source_layout.kind(path) is Kind.ABSENT:
            return match[0]
        name = source_layout.member(path)
        texts = (read(name) or "", changed[name])
        before, after = (git.blob(source_layout.unguarded(text)) for text in texts)
        mode = match["mode"] or REGULAR_FILE
        return f"diff --git a/{path} b/{path}\nindex {before}..{after} {mode}\n"

    patches = (
        Patch(patch.name, f"{patch.message}---\n{CHANGED_FILE.sub(with_blobs, patch.diff)}")
        for patch in loaded.patches
    )
    return dataclasses.replace(loaded, patches=tuple(patches))


def update(release: Release, read: Callable[[str], str | None]) -> list[Path]:
    """Bring a release's index lines and record up to date; return what was written.

    Args:
        release: whose series is on disk.
        read: as for `refreshed`.

    Raises:
        SeriesError: the series does not apply, or cannot be recorded.
    """
    loaded = refreshed(series.load(release), read)
    texts = {release.series / patch.name: patch.text for patch in loaded.patches}
    texts[release.series / RECORD] = record(release, loaded).to_yaml()
    written = []
    for path, text in texts.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            files.write_text(path, text)
            written.append(path)
    return written


def write(release: Release, folder: Path) -> None:
    """Write the exported series into a folder: the patches, their order, and the whole record.

    Raises:
        UsageError: the folder has files that are not of an export.
        SeriesError: the series cannot be exported.
    """
    loaded = series.load(release)
    texts = mails(loaded)
    whole = dataclasses.replace(
        record(release, loaded),
        added=new_blobs(loaded),
        patches={name: _sha256(text) for name, text in texts.items()},
    )
    _require_own(folder)
    with files.folder_beside(folder.resolve()) as unfinished:
        for name, text in texts.items():
            files.write_text(unfinished / name, text)
        files.write_text(unfinished / ORDER_FILE, "".join(f"{name}\n" for name in texts))
        files.write_text(unfinished / RECORD, whole.to_yaml())


def _require_own(folder: Path) -> None:
    """Refuse to replace a folder that has anything but an earlier export in it."""
    if not folder.exists():
        return
    try:
        present = {path.name for path in folder.iterdir()}
        order = folder / ORDER_FILE
        ours = {ORDER_FILE, RECORD, *(order.read_text().splitlines() if present else ())}
    except OSError as error:
        raise UsageError(f"{folder} is no export: {error}", NEW_FOLDER) from error
    if foreign := sorted(present - ours):
        raise UsageError(
            f"{folder} has files that are not of an export: {', '.join(foreign[:3])}", NEW_FOLDER
        )


def new_blobs(loaded: Series) -> dict[str, str]:
    """Git's hash of each new file, by upstream path."""
    return {path: git.blob(text) for path, text in sorted(loaded.new_files.items())}


def mails(loaded: Series) -> dict[str, str]:
    """Text of each exported patch by name, in the order of application."""
    additions = "".join(_addition(*item) for item in sorted(loaded.new_files.items()))
    own = {patch.name: mail(patch.message, patch.diff) for patch in loaded.patches}
    return {NEW_FILES_PATCH: mail(NEW_FILES_MESSAGE, additions), **own}


def mail(message: str, diff: str) -> str:
    """A patch as `git format-patch` writes it, the same whoever exports it and when."""
    return f"{MAIL_HEAD}{message}\n{diff}"


def _addition(path: str, text: str) -> str:
    """The diff that makes a file, as git writes it."""
    head = (
        f"diff --git a/{path} b/{path}\nnew file mode {REGULAR_FILE}\n"
        f"index {NO_BLOB}..{git.blob(text)}\n"
    )
    if not text:
        return head
    lines = text.removesuffix("\n").split("\n")
    count = "1" if len(lines) == 1 else f"1,{len(lines)}"
    body = "".join(f"+{line}\n" for line in lines)
    end = "" if text.endswith("\n") else "\\ No newline at end of file\n"
    return f"{head}--- /dev/null\n+++ b/{path}\n@@ -0,0 +{count} @@\n{body}{end}"


def _changed_files(patch: Patch) -> list[re.Match[str]]:
    """The head of each file's diff in a patch."""
    found = list(CHANGED_FILE.finditer(patch.diff))
    if [match["path"] for match in found] != [file.path for file in series.parse(patch)]:
        raise SeriesError(
            f"{patch.name} does not have a line `diff --git` for each file that it changes",
            "Make the diff with `git diff`.",
        )
    return found
