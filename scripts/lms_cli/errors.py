"""What can go wrong, as a user sees it: one class and one exit code per kind of failure.

A message says what failed and why; `remedy` says what to do about it.
"""

from __future__ import annotations


class LmsError(Exception):
    """A failure with a message fit for the user; never shown with a traceback."""

    exit_code = 1

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\n  {self.remedy}" if self.remedy else message


class UsageError(LmsError):
    """The command line asks for something that does not exist (argparse uses the same code)."""

    exit_code = 2


class NetworkError(LmsError):
    """A package index cannot be reached, or does not have the file."""

    exit_code = 3


class IntegrityError(LmsError):
    """A file is not the one that was pinned: wrong sha256, wrong size, truncated."""

    exit_code = 4


class SeriesError(LmsError):
    """The patch series does not fit the release."""

    exit_code = 5


class CompileError(LmsError):
    """No compiler, or the new sources do not compile."""

    exit_code = 6


class WheelError(LmsError):
    """A file is not a wheel that can be read, or not one that LMS can be grafted on."""

    exit_code = 7


class VerifyError(LmsError):
    """A wheel failed at least one check."""

    exit_code = 8


class BrokenEnvironmentError(LmsError):
    """A Python environment cannot be made, or its torch is not the LMS wheel."""

    exit_code = 9


class SpaceError(LmsError):
    """The disk is full, or would be."""

    exit_code = 10


class FileError(LmsError):
    """A file or folder cannot be read or written."""

    exit_code = 13


class TraceError(LmsError):
    """A trace breaks its format."""

    exit_code = 11


class OutOfMemoryError(LmsError):
    """What one operator of a trace uses does not fit in the device's memory."""

    exit_code = 12


class DocumentError(LmsError):
    """A document links to something that is not there, or cannot be rendered."""

    exit_code = 14


class PlanError(LmsError):
    """A script fails on the simulated device, or does not train for long enough to be timed."""

    exit_code = 15
