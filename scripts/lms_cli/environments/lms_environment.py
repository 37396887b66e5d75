"""Environments in which the LMS wheel of a release is installed with everything it needs.

There is one per release and Python, in two layers: the locked packages, then our torch. A new wheel
replaces only the second. Packages that a user asks for go into an overlay of their own, so the base
stays as it was verified.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lms_cli import files, paths, progress, releases
from lms_cli.environments import pip, virtual
from lms_cli.errors import BrokenEnvironmentError
from lms_cli.releases import Release
from lms_cli.wheel import graft
from lms_cli.wheel.graft import MANIFEST

TORCH_MARKER = ".torch"  # sha256 of the installed wheel; absent while an installation is under way
SPACE = 11_000_000_000  # bytes: CUDA's libraries unpacked, their wheels, torch
DESCRIBE = """
import importlib.metadata as m, json, sys
def text(name):
    try:
        return m.distribution(name).read_text("%s")
    except m.PackageNotFoundError:
        return None
try:
    version = m.distribution("torch").version
except m.PackageNotFoundError:
    version = None
print(json.dumps({"version": version, "manifest": text("torch") or text("torch_lms")}))
"""


@dataclass(frozen=True)
class Environment:
    """A Python environment."""

    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """Where its packages are."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        threads = "t" if releases.running_python().endswith("t") else ""
        return self.folder / "lib" / f"{version}{threads}" / "site-packages"

    def has_locked_packages(self) -> bool:
        """Whether the installation of the locked packages was finished."""
        return (self.folder / virtual.MARKER).exists()


def of(release: Release) -> Environment:
    """The LMS environment of a release for the running Python, which may not exist yet."""
    name = f"env-{release.version}-{releases.running_python()}"
    return Environment(paths.home().resolve() / name)


def ensure(release: Release) -> Environment:
    """The LMS environment of a release for the running Python, made or brought up to date.

    Raises:
        LmsError: one of its kinds; an unfinished environment is made again next time.
    """
    from lms_cli.wheel import builds

    wheel = builds.build(release, releases.running_python(), builds.wheels_folder(), quiet=True)
    environment = of(release)
    with files.locked(environment.folder):
        _install_locked(environment, release)
        _install_torch(environment, wheel, graft.dist_info_folder(release))
    return environment


def _install_locked(environment: Environment, release: Release) -> None:
    key = hashlib.sha256(release.lock.read_bytes() + sys.version.encode()).hexdigest()
    if virtual.is_complete(environment.folder, key):
        return
    files.require_space(paths.home(), SPACE, "an environment with CUDA's libraries")
    with progress.step(f"installing what PyTorch {release.version} needs, several GB"):
        virtual.create_venv(environment.folder, with_pip=False)
        install(
            environment,
            ["--require-hashes", "--only-binary=:all:", f"--requirement={release.lock}"],
            f"install what PyTorch {release.version} needs",
        )
        virtual.mark_complete(environment.folder, key)


def _install_torch(environment: Environment, wheel: Path, dist_info: str) -> None:
    marker = environment.folder / TORCH_MARKER
    sha256 = files.sha256_of(wheel)
    manifest = environment.site_packages / dist_info / MANIFEST  # gone if torch was replaced
    if marker.is_file() and marker.read_text(encoding="utf-8") == sha256 and manifest.is_file():
        return
    marker.unlink(missing_ok=True)
    with progress.step(f"installing {wheel.name}"):
        install(
            environment, ["--no-deps", "--force-reinstall", str(wheel)], f"install {wheel.name}"
        )
        pip_run(environment, ["check"], "check that all requirements are met (pip check)")
    files.write_text(marker, sha256)


def install(environment: Environment, arguments: list[str], purpose: str) -> None:
    """Install packages with the tools' pip."""
    pip_run(environment, ["install", "--quiet", "--progress-bar=off", *arguments], purpose)


def pip_run(environment: Environment, arguments: list[str], purpose: str) -> None:
    """Run the tools' pip on an environment."""
    pip.run(Path(sys.executable), ["--python", str(environment.python), *arguments], purpose)


def with_packages(base: Environment, packages: list[str]) -> Environment:
    """An environment that sees everything of `base`, and further packages on top.

    Raises:
        NetworkError, BrokenEnvironmentError: a package cannot be installed.
    """
    if not packages:
        return base

    def arguments(overlay: Environment) -> list[str]:
        constraint = overlay.folder / "constraints.txt"
        files.write_text(constraint, f"torch=={installed_version(base)}\n")
        return [f"--constraint={constraint}", *packages]

    return _overlay(base, sorted(packages), arguments, ", ".join(packages))


def with_lock(base: Environment, lock: Path) -> Environment:
    """An environment that sees everything of `base`, and what a lock lists on top.

    Raises:
        NetworkError, BrokenEnvironmentError: it cannot be installed.
    """
    arguments = ["--no-deps", "--require-hashes", "--only-binary=:all:", f"--requirement={lock}"]
    key = [lock.read_text(encoding="utf-8")]
    return _overlay(base, key, lambda overlay: arguments, f"what {lock.name} lists")


def _overlay(
    base: Environment,
    key: list[str],
    arguments: Callable[[Environment], list[str]],
    contents: str,
) -> Environment:
    """The overlay of a key; if it is not complete, pip installs into it with the arguments."""
    text = json.dumps([str(base.folder), key])
    name = hashlib.sha256(text.encode()).hexdigest()[:12]
    overlay = Environment(paths.home().resolve() / f"with-{name}")
    with files.locked(overlay.folder):
        if not virtual.is_complete(overlay.folder):
            with progress.step(f"installing {contents}"):
                virtual.create_venv(overlay.folder, with_pip=False)
                link = f"import site; site.addsitedir({str(base.site_packages)!r})\n"
                (overlay.site_packages / "lms-base.pth").write_text(link, encoding="utf-8")
                install(overlay, arguments(overlay), f"install {contents}")
            virtual.mark_complete(overlay.folder)
    return overlay


def installed_version(environment: Environment) -> str:
    """Version of the torch of an environment, which is an LMS wheel or has the small wheel beside.

    Raises:
        BrokenEnvironmentError: there is no Python, no torch, or a torch without LMS.
    """
    remedy = (
        "Another package may have replaced it. Install the wheel that `lms build` prints with "
        f"`pip install --force-reinstall --no-deps WHEEL`, or delete {environment.folder} if `lms` "
        "made it."
    )
    try:
        command = [str(environment.python), "-c", DESCRIBE % MANIFEST]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise BrokenEnvironmentError(
            f"{environment.folder} is not a Python environment that works: {error}",
            "Give the folder of a virtual environment, or leave the option out.",
        ) from error
    found = json.loads(output)
    if found["version"] is None:
        raise BrokenEnvironmentError(f"there is no torch in {environment.folder}", remedy)
    if found["manifest"] is None:
        raise BrokenEnvironmentError(
            f"torch {found['version']} in {environment.folder} is not an LMS wheel, nor is there "
            "the small wheel, torch_lms",
            remedy,
        )
    return str(found["version"])
