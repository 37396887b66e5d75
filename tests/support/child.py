"""Child processes: one that ends with a result, and one that answers requests over a pipe.

The other end of `Child` is `serve.answer`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

SHOWN_LINES = 40  # of standard error


class ChildError(AssertionError):
    """A program under test failed; the message ends with what it wrote on standard error."""


def failure(command: Sequence[str], what: str, stderr: str) -> ChildError:
    """The error for a program that failed."""
    tail = "\n".join(stderr.splitlines()[-SHOWN_LINES:])
    shown = " ".join(part if len(part) < 200 else f"{part[:200]}..." for part in command)
    return ChildError(f"{shown}\n{what}:\n{tail}")


@dataclass(frozen=True)
class Finished:
    """A program that has ended."""

    command: list[str]
    status: int  # exit status, negative: the signal that ended it
    stdout: str
    stderr: str

    def json(self) -> Any:
        """Its result: the last line of its output as JSON.

        Raises:
            ChildError: it failed, or printed none.
        """
        if self.status != 0:
            raise failure(self.command, f"ended with exit status {self.status}", self.stderr)
        try:
            return json.loads(self.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            what = f"printed no JSON in its last line but {self.stdout[-500:]!r}"
            raise failure(self.command, what, self.stderr) from None


class Child:
    """A process that answers requests: a line of JSON for each line of JSON.

    It is started by the first request, and again by the first one after it died.
    """

    def __init__(self, command: list[str], environment: dict[str, str], timeout: float) -> None:
        self._command = command
        self._environment = environment
        self._timeout = timeout  # seconds per request
        # It lives as long as the object.
        self._stderr = tempfile.TemporaryFile("a+", errors="replace")  # noqa: SIM115
        self._process: subprocess.Popen[str] | None = None

    def _start(self) -> subprocess.Popen[str]:
        self._stderr.truncate(0)
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )
        return self._process

    def ask(self, request: Any) -> Any:
        """Sends a request and waits for its answer.

        Raises:
            ChildError: the process died or took too long instead, or the request raised there.
        """
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(self._timeout, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            what = f"ended with exit status {self._end()} in {request}"
            raise failure(self._command, what, self._errors())
        answer = json.loads(line)
        if "error" in answer:
            raise failure(self._command, f"failed in {request}", answer["error"])
        return answer["result"]

    def _errors(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read()

    def _end(self) -> int:
        """Lets the process end by itself; returns its exit status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            status = process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        process.stdout.close()
        return status

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Ends the process; how it does so is part of what is tested."""
        status = self._end()
        errors = self._errors()
        self._stderr.close()
        if status != 0 and error is None:
            raise failure(self._command, f"ended with exit status {status} at exit", errors)
