"""The command works from a checkout in a folder whose path has a space.

What takes long to make is shared with this checkout by links: environments, the compiled library,
wheels; the simulated device is copied and brought up to date. `bench` goes as far as its list: a
cell takes a minute. Not tried: `rebase` and `lock`, which download for minutes, `demo`, which is
`run` for minutes, and `trace replay`, which compiles.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lms_cli import lms_environment, paths, releases

RELEASE = releases.default(paths.PATCHES)
MADE = (".lms", ".git", "__pycache__", ".*_cache", ".hypothesis")
SHARED = ("env-*", "libraries", "lint-*", "stamps", "tools-*", "wheels")
PROGRAM = "import torch; print((torch.ones(3).cuda() + 1).sum().item())"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkout") / "py torch lms"
    shutil.copytree(paths.ROOT, root, ignore=shutil.ignore_patterns(*MADE))
    home = root / ".lms"
    home.mkdir()
    for pattern in SHARED:
        for made in paths.home().glob(pattern):
            (home / made.name).symlink_to(made.resolve())
    if built := os.environ.get("LMS_SIM_BUILD"):
        environment = home / lms_environment.of(RELEASE).folder.name
        name = hashlib.sha256(str(environment).encode()).hexdigest()[:12]
        shutil.copytree(built, home / f"simcuda-{name}")
    (root / "a program.py").write_text(PROGRAM)
    return root


SIM = ("--device", "sim", "--capacity", "64M")
COMMANDS = {
    "status": ("status",),
    "lint": ("lint",),
    "build": ("build", RELEASE.version),
    "verify": ("verify", RELEASE.version),
    "export": ("export", RELEASE.version, "--out", "the patches"),
    "index": ("index", "--check"),
    "run": ("run", *SIM, "a program.py"),
    "record": ("trace", "record", "a trace", *SIM, "a program.py"),
    "bench": ("bench", "--list"),
    "test": ("test", "--release", RELEASE.version, "tests/tooling/test_ci.py", "-n", "0"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_verb(checkout: Path, name: str) -> None:
    variables = {key: value for key, value in os.environ.items() if not key.startswith("LMS_")}
    done = subprocess.run(
        [sys.executable, "scripts/lms", *COMMANDS[name]],
        cwd=checkout,
        env=variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    if name == "run":
        assert done.stdout == "6.0\n"
