#!/usr/bin/env python3
"""Print the matrix of continuous integration: one row for each wheel in `patches/releases.yaml`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from lms_cli import paths, releases  # noqa: E402
from lms_cli.environments import toolbox  # noqa: E402


def rows(only: str | None) -> list[dict[str, Any]]:
    """The rows of the matrix."""
    return [
        {
            "release": release.version,
            "python": releases.dotted(official.python),
            "machine": official.machine,
            "wheel": release.wheel_filename(official),
            "command": f"./scripts/lms build {release.version} "
            f"--python {releases.dotted(official.python)} --machine {official.machine}",
        }
        for release in releases.load(paths.PATCHES).values()
        if only in (None, release.version)
        for official in release.official
    ]


def main() -> None:
    """Print the matrix as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--release", help="only this release")
    args = parser.parse_args()
    if Path(sys.prefix) != toolbox.folder_of(toolbox.LOCK):  # which have the YAML library
        python = toolbox.make(toolbox.LOCK, "the tools of this command")
        os.execv(python, [str(python), __file__, *sys.argv[1:]])
    print(json.dumps({"include": rows(args.release)}))


if __name__ == "__main__":
    main()
