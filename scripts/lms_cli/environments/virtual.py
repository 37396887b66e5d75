"""Virtual environments that are either complete or made again.

A virtual environment cannot be renamed, so it is built in place; a marker file, written last, says
that it is complete. Without the marker (a killed run) the folder is thrown away.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from lms_cli import files
from lms_cli.errors import BrokenEnvironmentError

MARKER = ".complete"


def is_complete(folder: Path, contents: str = "") -> bool:
    """Whether the environment was finished, from the given contents (a hash, say)."""
    try:
        return (folder / MARKER).read_text(encoding="utf-8") == contents
    except OSError:
        return False


def mark_complete(folder: Path, contents: str = "") -> None:
    """Record that the environment is finished."""
    files.write_text(folder / MARKER, contents)


def create_venv(folder: Path, with_pip: bool) -> Path:
    """Make an empty virtual environment of the running Python; return its interpreter.

    Raises:
        BrokenEnvironmentError: this Python cannot make virtual environments.
    """
    if folder.exists():
        shutil.rmtree(folder)
    command = [sys.executable, "-m", "venv", *([] if with_pip else ["--without-pip"]), str(folder)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        shutil.rmtree(folder, ignore_errors=True)
        output = (result.stdout + result.stderr).strip()
        raise BrokenEnvironmentError(
            f"{sys.executable} cannot make a virtual environment:\n{output}",
            "On Debian or Ubuntu: apt install python3-venv. Elsewhere: a Python with venv.",
        )
    return folder / "bin" / "python"
