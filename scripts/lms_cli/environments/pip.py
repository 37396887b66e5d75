"""Running pip, and saying in one sentence why it failed.

pip finds the package index, proxy and certificates that the user configured for it; this project
names none. Versions that the user constrains pip to are for other environments: here all are pinned
by hash, or named.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from lms_cli.errors import (
    BrokenEnvironmentError,
    IntegrityError,
    LmsError,
    NetworkError,
    SpaceError,
)

NO_NETWORK = (
    "Check the network, and the index and proxy that pip is configured with (pip config list)."
)
# What pip prints, and what it means. The first match counts.
FAILURES: tuple[tuple[str, type[LmsError], str], ...] = (
    (
        r"No space left on device|Errno 28|Disk quota exceeded",
        SpaceError,
        "Free some space and run it again.",
    ),
    (
        r"DO NOT MATCH THE HASHES",
        IntegrityError,
        "The package index served another file than the pinned one. Nothing was kept; if it "
        "happens again, check the index and proxy that pip is configured with (pip config list).",
    ),
    (
        r"NewConnectionError|Failed to establish|Name or service not known|name resolution|"
        r"Network is unreachable|Connection refused",
        NetworkError,
        NO_NETWORK,
    ),
    (
        r"IncompleteRead|incomplete.download|Download failed|Connection broken|not enough bytes",
        IntegrityError,
        "The download was cut short and nothing of it was kept. Run it again.",
    ),
    (
        r"connection error|ConnectionError|timed out|ProxyError|SSLError|HTTP error",
        NetworkError,
        NO_NETWORK,
    ),
    (
        r"No matching distribution found|Could not find a version",
        NetworkError,
        "The package index that pip is configured with (pip config list) does not have it, or "
        "cannot be reached.",
    ),
)


def run(python: Path, arguments: list[str], purpose: str) -> None:
    """Run pip with its progress shown on standard error.

    Args:
        python: interpreter of the environment whose pip runs.
        arguments: pip's command line.
        purpose: what this is for, as a verb phrase, for the error message.

    Raises:
        LmsError: pip failed; the class says how.
    """
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    process = subprocess.Popen(
        command,
        stdout=sys.stderr.fileno(),
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    assert process.stderr is not None
    complaints = [line.rstrip() for line in process.stderr]
    if process.wait() != 0:
        raise explain(complaints, purpose)


def clean_environment() -> dict[str, str]:
    """The environment without what would make pip look at, or choose, someone else's packages."""
    hidden = (
        "PYTHONPATH",
        "PYTHONHOME",
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_USER",
        "PIP_REQUIRE_VIRTUALENV",
    )
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    # An empty file: unset or empty, pip would take those of its configuration files.
    return kept | {"PIP_CONSTRAINT": os.devnull}


def explain(complaints: list[str], purpose: str) -> LmsError:
    """Turn pip's complaints into an error of the right class."""
    errors = [line for line in complaints if re.match(r"\s*ERROR:", line)] or complaints[-5:]
    text = "\n".join(complaints)
    detail = "\n".join(f"  {line.strip()}" for line in errors[:8])
    for pattern, kind, remedy in FAILURES:
        if re.search(pattern, text, re.IGNORECASE):
            return kind(f"could not {purpose}:\n{detail}", remedy)
    return BrokenEnvironmentError(f"could not {purpose}; pip says:\n{detail}")
