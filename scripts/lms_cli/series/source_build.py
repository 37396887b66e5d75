"""The recipe of a build from source: the exported series, a script and a container file."""

from __future__ import annotations

from pathlib import Path

from lms_cli import files, paths
from lms_cli.releases import Release
from lms_cli.series import export, series

TEMPLATES = paths.BUILD / "source"
SCRIPT = "build.sh"
BLOBS = "blobs"  # git's hash and the path of each file of the series, as the script checks them


def write(release: Release, folder: Path) -> None:
    """Write everything that a build from source needs into a folder; other files there stay.

    Raises:
        UsageError: the folder of the patches has files that are not of an export.
        SeriesError: the series cannot be exported.
    """
    export.write(release, folder / "patches")
    loaded = series.load(release)
    changed = export.record(release, loaded).changed
    after = {path: blobs.after for path, blobs in changed.items()} | export.new_blobs(loaded)
    blobs = "".join(f"{blob} {path}\n" for path, blob in sorted(after.items()))
    files.write_text(folder / BLOBS, blobs)
    facts = {
        "version": release.version,
        "tag": release.tag,
        "commit": release.commit,
        "cuda": release.cuda,
        "lms_version": release.lms_version,
    }
    for template in TEMPLATES.iterdir():
        text = template.read_text(encoding="utf-8")
        for name, value in facts.items():
            text = text.replace(f"@{name}@", value)
        files.write_text(folder / template.name, text)
    (folder / SCRIPT).chmod(0o755)
