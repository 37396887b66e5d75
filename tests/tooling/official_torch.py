"""The official torch, put together from the LMS wheel's files and the official wheel's few others.

Links, so that it takes neither time nor space.
"""

from __future__ import annotations

import json
from pathlib import Path

from lms_cli import download, releases
from lms_cli.releases import Release
from lms_cli.wheel import graft
from lms_cli.wheel.wheelfile import Wheel

LINKED = ("nvidia", "cusparselt", "torchgen")  # beside torch: its libraries look for CUDA's there


def make(folder: Path, site_packages: Path, release: Release) -> None:
    """Make the official wheel's torch in a folder, from an installation of the LMS wheel."""
    manifest = site_packages / graft.dist_info_folder(release) / graft.MANIFEST
    listed = json.loads(manifest.read_text())
    ours = {*listed["added"], *listed["changed"]}
    _link(site_packages, folder, "torch", ours)
    for name in filter(lambda name: (site_packages / name).exists(), LINKED):
        (folder / name).symlink_to(site_packages / name)
    official = download.fetch_texts(release.wheel_for(releases.running_python()))
    with Wheel(official) as texts:
        texts.zip.extractall(folder, listed["changed"])


def _link(source: Path, target: Path, name: str, ours: set[str]) -> None:
    """Link a file or folder, or what is upstream's in it."""
    if not any(path.startswith(f"{name}/") for path in ours):
        (target / name).symlink_to(source / name)
        return
    (target / name).mkdir()
    for child in (source / name).iterdir():
        member = f"{name}/{child.name}"
        if member not in ours and child.name != "__pycache__":
            _link(source, target, member, ours)
