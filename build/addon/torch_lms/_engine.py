"""Loading the engine for the PyTorch of this process, when LMS is first used."""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from typing import Any

import torch

FOLDER = os.path.join(os.path.dirname(__file__), "releases")
TORCH = os.path.dirname(torch.__file__)


def load() -> None:
    """Load the library for this PyTorch, and add its statistics to those of torch.cuda.memory.

    Raises:
        RuntimeError: there is none for this PyTorch, or it does not fit. The message says what to
            install.
    """
    release = _release()
    try:
        torch.ops.load_library(os.path.join(FOLDER, release, "libtorch_lms.so"))
    except OSError as error:
        raise RuntimeError(
            f"The engine of Large Model Support for PyTorch {release} cannot be loaded: {error}\n"
            f"Either {TORCH} is not what the official wheel holds, or torch_lms is damaged. "
            f"Install both again: pip install --force-reinstall torch=={release} torch_lms"
        ) from error
    _change_functions(torch.cuda.memory, os.path.join(FOLDER, release, "memory.py"))


def _release() -> str:
    """The release whose official wheel this PyTorch is from."""
    with open(os.path.join(FOLDER, "releases.json"), encoding="utf-8") as file:
        supported: dict[str, dict[str, str]] = json.load(file)
    found = {"commit": torch.version.git_version, "cuda": torch.version.cuda}
    for release, built_for in supported.items():
        if built_for == found:
            return release
    public = torch.__version__.partition("+")[0]
    advised = public if public in supported else list(supported)[-1]
    lines = [_described(release, **built_for) for release, built_for in supported.items()]
    raise RuntimeError(
        f"Large Model Support does not fit this PyTorch. torch_lms {version('torch_lms')} is built "
        f"for the official wheels of\n{''.join(lines)}"
        f"and you have\n{_described(torch.__version__, **found)}in {TORCH}. Install one of those "
        f"(pip install --force-reinstall torch=={advised}), or a torch_lms that is built for yours."
    )


def _described(release: str, commit: str | None, cuda: str | None) -> str:
    with_cuda = f"with CUDA {cuda}" if cuda else "without CUDA"
    return f"  PyTorch {release} {with_cuda}, commit {str(commit)[:12]}\n"


def _change_functions(module: Any, path: str) -> None:
    """Give functions of a module the code of their namesakes in a file.

    They stay the same objects, so who imported them by name gets the new code as well.
    """
    with open(path, encoding="utf-8") as file:
        text = compile(file.read(), path, "exec")
    changed: dict[str, Any] = {}
    exec(text, vars(module), changed)
    for name, function in changed.items():
        was = getattr(module, name).__code__
        place = {"co_filename": was.co_filename, "co_firstlineno": was.co_firstlineno}
        getattr(module, name).__code__ = function.__code__.replace(**place)
