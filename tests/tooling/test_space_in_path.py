"""The command works from a checkout in a folder whose path has a space.

What takes long to make is shared with this checkout by links: environments, the compiled library,
wheels; the simulated device is copied, and a part of it made again. `lock` and `rebase` are tried
on a fake release, since those of a real one download for minutes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fake_torch import NEW, VERSION, FakeRelease, successor
from lms_cli import paths, releases
from lms_cli.environments import lms_environment
from synthetic_trace import HEADER, alloc, free, op, write

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
        (home / f"simcuda-{name}" / "lib" / "libsimnvml.fingerprint").unlink()
    (root / "a program.py").write_text(PROGRAM)
    write(root / "a made trace", [HEADER, alloc(1), op("", "1"), op("1", "1"), free(1)])
    return root


SIM = ("--device", "sim", "--capacity", "64M")
CELL = ("--workload", "gpt-tiny", "--rival", "ideal", "--ratio", "2", "--iterations", "4")
COMMANDS = {
    "status": ("status",),
    "lint": ("lint",),
    "build": ("build", RELEASE.version),
    "verify": ("verify", RELEASE.version),
    "export": ("export", RELEASE.version, "--out", "the patches"),
    "index": ("index", "--check"),
    "run": ("run", *SIM, "a program.py"),
    "demo": ("demo", "--device", "sim", "--model", "resnet", "--steps", "1"),
    "record": ("trace", "record", "a trace", *SIM, "a program.py"),
    "replay": ("trace", "replay", "a made trace", "--card", "A100-SXM-40GB"),
    "list": ("bench", "--list"),
    "bench": ("bench", *CELL, "--no-bound", "--parallel", "1", "--out", "the results"),
    "test": ("test", "--release", RELEASE.version, "tests/tooling/test_ci.py", "-n", "0"),
}


def lms(checkout: Path, *arguments: str, **variables: str) -> str:
    """What a command that has to succeed prints."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LMS_")}
    done = subprocess.run(
        [sys.executable, "scripts/lms", *arguments],
        cwd=checkout,
        env=kept | variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_verb(checkout: Path, name: str) -> None:
    printed = lms(checkout, *COMMANDS[name])
    if name == "run":
        assert printed == "6.0\n"


def test_verbs_on_a_release_of_its_own(checkout: Path, lockable: FakeRelease) -> None:
    """A fake one, in a folder whose path has a space too."""
    fake = replace(lockable, root=lockable.root.rename(lockable.root.with_name("a release")))
    links = fake.index.as_uri()  # pip takes a space for the end of a path
    fake.variables |= {"UV_FIND_LINKS": links, "PIP_FIND_LINKS": links}
    variables = fake.environment()
    variables["LMS_HOME"] = str(checkout / ".lms")
    assert lms(checkout, "lock", VERSION, **variables) == f"{fake.series}/requirements.lock\n"
    fake.keep(fake.official)
    lms(checkout, "rebase", NEW, "--wheel", str(successor(fake, {})), **variables)
    assert (fake.patches / f"v{NEW}" / "requirements.lock").is_file()
