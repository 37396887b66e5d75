"""Writing files and folders so that a killed run leaves the old state or the new, never a half."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lms_cli import progress
from lms_cli.errors import SpaceError

WORKSPACE_PREFIX = ".lms-unfinished-"


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with progress.step(f"reading {path.name}", brief=True), path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def written_beside(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`; rename it to `target` when the block succeeds."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(target: Path, text: str) -> None:
    """Write a small file atomically."""
    with written_beside(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def folder_beside(target: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `target`; it replaces `target` when the block succeeds."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        temporary.replace(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def workspace(parent: Path) -> Iterator[Path]:
    """Yield a temporary folder in `parent`, one at a time; remove what killed runs left there."""
    parent.mkdir(parents=True, exist_ok=True)
    with locked(parent / "workspace"):
        for leftover in parent.glob(f"{WORKSPACE_PREFIX}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=WORKSPACE_PREFIX, dir=parent) as folder:
            yield Path(folder)


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold an inter-process lock named after `target`, so that two runs do not make it at once."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f".{target.name}.lock").open("w") as stream:
        with progress.step(f"waiting for another lms to be done with {target}", brief=True):
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def require_space(folder: Path, needed: int, purpose: str) -> None:
    """Raise `SpaceError` unless `folder`'s disk has `needed` bytes free."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SpaceError(
            f"not enough space in {folder}: {purpose} needs {needed / 1e9:.1f} GB, "
            f"{free / 1e9:.1f} GB are free",
            "Free some space, or point LMS_HOME (what is built) and XDG_CACHE_HOME (downloads) "
            "at a larger disk.",
        )


def is_out_of_space(error: OSError) -> bool:
    """Whether an operating system error means a full disk or an exhausted quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
