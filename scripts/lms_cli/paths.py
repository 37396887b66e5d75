"""Where things are: the repository, what is made in it, and downloads shared between checkouts."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "lms"
LOCKS = ROOT / "scripts" / "locks"
PATCHES = Path(os.environ.get("LMS_PATCHES") or ROOT / "patches")  # to try another series
TIMELINE = ROOT / "patches" / "files" / "torch" / "cuda"  # the package _lms_timeline is there
BUILD = ROOT / "build"
INDEX = ROOT / "wheels"  # the package index of published wheels


def home() -> Path:
    """Folder for everything made here and safe to delete; `LMS_HOME` moves it."""
    return Path(os.environ.get("LMS_HOME") or ROOT / ".lms")


def downloads() -> Path:
    """Folder of downloaded files, each under its sha256; shared by all checkouts of a user."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "pytorch-lms"
