"""Running MkDocs on the documents, from an environment of its own."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

from lms_cli import files, paths, progress
from lms_cli.environments import toolbox
from lms_cli.errors import DocumentError, UsageError

CONFIGURATION = Path("scripts/lms_cli/site/mkdocs.yml")
INDEX = "search/search_index.json"  # which every site has
VARIABLES = {
    "NO_MKDOCS_2_WARNING": "true",  # Material's, on every start
    "PYTHONPATH": str(paths.SCRIPT.parent),  # for hooks.py
}


def build(folder: Path, root: Path = paths.ROOT) -> None:
    """Make the site; `folder` is as it was if that fails.

    Args:
        folder: where the site is put, in place of an earlier one.
        root: the repository whose documents are read.

    Raises:
        UsageError: the folder has something else in it.
        DocumentError: a link or an anchor leads nowhere, or a page is in no menu.
    """
    require_own(folder)
    with progress.step("making the site"), files.folder_beside(folder.resolve()) as made:
        result = subprocess.run(
            [*command(root, "build"), "--strict", "--site-dir", str(made)],
            env={**os.environ, **VARIABLES},
            capture_output=True,
            text=True,
        )
        if result.returncode != 0:
            raise DocumentError(
                f"the documents cannot be made a site:\n{complaints(result.stderr)}",
                f"Mend the pages that it names. The menu is nav in {CONFIGURATION}.",
            )


def require_own(folder: Path) -> None:
    """Refuse to replace anything but an earlier site."""
    if folder.is_dir() and ((folder / INDEX).is_file() or not any(folder.iterdir())):
        return
    if folder.exists():
        raise UsageError(f"{folder} is there, and no site", "Name a new folder with --out.")


def complaints(said: str) -> str:
    """What MkDocs says beside what it does."""
    lines = said.rstrip().splitlines()
    return "\n".join(f"  {line}" for line in lines if not line.startswith("INFO"))


def serve(address: str) -> int:
    """Serve the site until interrupted, made anew whenever a document changes.

    Raises:
        UsageError: nothing can be served at that address.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_server((host, int(port))).close()
    except (OSError, OverflowError, ValueError) as error:
        raise UsageError(
            f"the site cannot be served at {address}: {error}",
            "Name another address and port: lms docs --serve 127.0.0.1:8001",
        ) from None
    words = [*command(paths.ROOT, "serve"), "--dev-addr", address]
    return subprocess.run(words, env={**os.environ, **VARIABLES}).returncode


def command(root: Path, verb: str) -> list[str]:
    """The beginning of MkDocs's command line; its environment is made if need be."""
    python = toolbox.make(paths.LOCKS / "docs.lock", "what makes the site")
    return [str(python), "-m", "mkdocs", verb, "--config-file", str(root / CONFIGURATION)]
