"""Running a program whose standard error is a terminal, as a user who waits sees it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Iterator
from typing import Any

ROWS, COLUMNS = 40, 160
MARKS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # what moves the cursor, and colours


def run(command: list[Any], env: dict[str, str]) -> tuple[int, str, str]:
    """Runs a program; its status, its standard output, and what the terminal got, marks aside."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    with (
        open(ours, "rb", buffering=0) as terminal,
        subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
            env={**env, "TERM": "xterm", "NO_COLOR": "1"},
        ) as process,
    ):
        os.close(theirs)
        shown = b"".join(_read(terminal)).decode()
        assert process.stdout is not None
        printed = process.stdout.read()
    return process.returncode, printed, MARKS.sub("", shown)


def _read(terminal: Any) -> Iterator[bytes]:
    """Everything until nobody has the other side open, which Linux says by an error."""
    with contextlib.suppress(OSError):
        while chunk := terminal.read(1 << 16):
            yield chunk
