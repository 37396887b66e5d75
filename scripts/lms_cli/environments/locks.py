"""Reading lock files: requirements pinned to one version, each with the sha256 of its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lms_cli.errors import LmsError


@dataclass(frozen=True)
class Pin:
    """One locked package that applies to the running Python."""

    name: str  # canonical: nvidia-cuda-runtime
    version: str  # 13.0.96
    sha256: tuple[str, ...]  # of every file upstream published for that version


def read(lock: Path, python: str | None = None) -> dict[str, Pin]:
    """The packages of a lock file by canonical name.

    Args:
        lock: a requirements file in pip's format, with hashes.
        python: evaluate markers for this version (3.12) and not for the running one.

    Raises:
        LmsError: the file is missing or malformed.
    """
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    environment = (
        {} if python is None else {"python_version": python, "python_full_version": f"{python}.0"}
    )
    pins: dict[str, Pin] = {}
    try:
        for line in lock.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
            text, *hashes = line.partition("#")[0].split("--hash=sha256:")
            if not text.strip():
                continue
            requirement = Requirement(text.strip())
            if requirement.marker and not requirement.marker.evaluate(environment):
                continue
            name = canonicalize_name(requirement.name)
            version = str(requirement.specifier).removeprefix("==")
            pins[name] = Pin(name, version, tuple(item.strip() for item in hashes))
    except OSError as error:
        raise LmsError(f"cannot read the lock file: {error}") from error
    except InvalidRequirement as error:
        raise LmsError(f"{lock} is malformed: {error}") from error
    return pins
