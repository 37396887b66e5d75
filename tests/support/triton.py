"""What Triton needs of the machine."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

HAS_HEADERS = (Path(sysconfig.get_path("include")) / "Python.h").is_file()

WHY = "Python's headers are missing, with which Triton compiles launchers"

needs_headers = pytest.mark.skipif(not HAS_HEADERS, reason=WHY)
