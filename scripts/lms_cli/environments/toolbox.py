"""The environment that the `lms` command itself runs in: pinned libraries.

A fresh machine has only Python. The first run makes `.lms/tools-<hash>` from
`scripts/locks/tools.lock` and starts the command again inside it. Everything here works without any
third-party library.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

from lms_cli import files, paths, progress
from lms_cli.environments import pip, virtual

LOCK = paths.LOCKS / "tools.lock"


def ensure(arguments: list[str]) -> None:
    """Return if this process has the tools, else replace it by one that has."""
    if Path(sys.prefix) == folder_of(LOCK):
        return
    python = make(LOCK, "the tools of this command")
    sys.stderr.flush()
    os.execv(python, [str(python), str(paths.SCRIPT), *arguments])


def folder_of(lock: Path) -> Path:
    """Folder of the environment with a lock file's packages, for this Python."""
    key = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()[:12]
    return paths.home().resolve() / f"{lock.stem}-{key}"


def make(lock: Path, purpose: str) -> Path:
    """Make an environment with a lock file's packages unless it is there; return its Python."""
    folder = folder_of(lock)
    python = folder / "bin" / "python"
    with files.locked(folder):
        if virtual.is_complete(folder):
            return python
        with progress.step(f"installing {purpose} into {folder}"):
            virtual.create_venv(folder, with_pip=True)
            pip.run(
                python,
                ["install", "--quiet", "--require-hashes", "--only-binary=:all:", "-r", str(lock)],
                f"install {purpose}",
            )
            virtual.mark_complete(folder)
    return python
