"""Locking what an environment with a release of PyTorch holds: resolved by uv, pinned by hash."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from lms_cli import paths, progress
from lms_cli.errors import NetworkError
from lms_cli.releases import Release

OLDEST_PYTHON = 10  # 3.10, for the `lms` command
TOOLS = paths.LOCKS / "tools.in"
RELEASE = paths.LOCKS / "release.in"
COMMAND = "lms lock"  # what the lock says it was made by
FOREIGN = ("UV_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE")  # versions that are for other environments


def lock(release: Release) -> None:
    """Lock what an environment with a release holds, keeping the versions it has where they fit.

    Raises:
        NetworkError: uv cannot resolve it; its last lines say why.
    """
    pythons = [int(re.findall(r"\d+", tag)[0][1:]) for tag in release.wheels]
    oldest = f"3.{max(OLDEST_PYTHON, min(pythons))}"
    headers = "cuda-toolkit[crt]"  # of the version that torch requires
    if release.cuda_major == "12":
        headers = f"nvidia-cuda-nvcc-cu12=={release.cuda}.*"
    requirements = [f"torch=={release.version}", headers]
    release.lock.parent.mkdir(parents=True, exist_ok=True)
    command = [
        str(Path(sys.executable).with_name("uv")),
        *("pip", "compile", "--quiet", "--universal", f"--python-version={oldest}"),
        *("--generate-hashes", "--only-binary=:all:", "--no-emit-package=torch", "--no-annotate"),
        f"--custom-compile-command={COMMAND} {release.version}",
        f"--output-file={release.lock}",
        *("-", str(RELEASE), str(TOOLS)),
    ]
    with progress.step(f"locking what PyTorch {release.version} needs"):
        result = subprocess.run(
            command,
            cwd=paths.ROOT,
            env={name: value for name, value in os.environ.items() if name not in FOREIGN},
            input="\n".join(requirements),
            capture_output=True,
            text=True,
        )
    if result.returncode != 0:
        reason = "\n".join(result.stderr.strip().splitlines()[-5:])
        raise NetworkError(f"uv cannot lock what PyTorch {release.version} needs:\n{reason}")
