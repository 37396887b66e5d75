"""The library of Large Model Support's engine, loaded when it is first needed."""

from __future__ import annotations

import os
import threading
from typing import Any

import torch

PATH = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_lms.so")
_lock = threading.Lock()
_loaded = False


def load() -> None:
    """Load the LMS wheel's library. The wheel torch_lms puts its own function here.

    In a build from source the engine is part of libtorch_cuda and there is no
    library of its own.

    Raises:
        RuntimeError: the engine is missing.
    """
    if os.path.exists(PATH):
        torch.ops.load_library(PATH)
    if not hasattr(torch.ops.lms, "set_enabled"):
        raise RuntimeError(
            f"Large Model Support is not part of this PyTorch ({torch.__version__}): "
            f"{PATH} is missing. Install the LMS wheel again."
        )


def engine() -> Any:
    """Return the engine's functions, ``torch.ops.lms``."""
    global _loaded
    with _lock:
        if not _loaded:
            load()
            _loaded = True
    return torch.ops.lms


def is_loaded() -> bool:
    """Return whether the engine is in use: it costs nothing before that."""
    return _loaded
