"""What git does for the series: diffs and three-way merges of texts, and the names of blobs."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from lms_cli.errors import LmsError

# Nothing that a user has configured may change what is written.
NEUTRAL = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_NAME": "LMS" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "lms@pytorch-lms.invalid" for who in ("AUTHOR", "COMMITTER")},
    "LC_ALL": "C",
}


def run(*arguments: str | Path, folder: Path, expect: tuple[int, ...] = (0,)) -> str:
    """The output of a git command.

    Args:
        arguments: the command, without `git`.
        folder: where to run it.
        expect: the exit statuses that are no failure.

    Raises:
        LmsError: git is not installed, or the command failed.
    """
    # A hook that runs this names the repository of the user in GIT_DIR and others.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        result = subprocess.run(
            ["git", *map(str, arguments)],
            cwd=folder,
            env={**inherited, **NEUTRAL},
            capture_output=True,
            text=True,
        )
    except FileNotFoundError as error:
        raise LmsError("git is not installed", "Install it (apt install git).") from error
    if result.returncode not in expect:
        raise LmsError(f"git {arguments[0]} failed: {result.stderr.strip()}")
    return result.stdout


def blob(text: str) -> str:
    """The name that git gives a file's content: SHA-1, 40 hexadecimal digits."""
    content = text.encode()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def diff(before: dict[str, str], after: dict[str, str]) -> str:
    """The unified diff between two states of the same files, by path, in git's format."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for side, texts in (("a", before), ("b", after)):
            for path, text in texts.items():
                target = folder / side / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, encoding="utf-8")
        options = ("--no-index", "--no-prefix", "--full-index", "--no-color", "--no-ext-diff")
        return run("diff", *options, "a", "b", folder=folder, expect=(0, 1))


def merge(ours: str, base: str, theirs: str, names: tuple[str, str, str]) -> tuple[str, bool]:
    """A three-way merge of texts.

    Args:
        ours: the one side, shown first in a conflict.
        base: what both sides come from.
        theirs: the other side.
        names: what the three are called in a conflict's markers.

    Returns:
        The merged text, and whether it is free of conflicts.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for side, text in (("ours", ours), ("base", base), ("theirs", theirs)):
            (folder / side).write_text(text, encoding="utf-8")
        labels = [word for name in names for word in ("-L", name)]
        clean = tuple(range(128))  # the number of conflicts; git's own failures are above
        merged = run(
            "merge-file", "-p", "--diff3", *labels, "ours", "base", "theirs",
            folder=folder, expect=clean,
        )  # fmt: skip
    return merged, f"<<<<<<< {names[0]}\n" not in merged
