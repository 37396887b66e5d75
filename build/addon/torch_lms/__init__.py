"""Large Model Support for PyTorch's official wheels.

`import torch` runs `autoload`, an entry point of the group torch.backends, which adds the functions
of LMS to torch.cuda. Whether this PyTorch is one that they work with is looked at when one of them
is called.
"""

from __future__ import annotations

import logging
import os
import sys
from importlib.machinery import FileFinder, SourceFileLoader
from types import CodeType

# What the patch of torch/cuda/__init__.py exports, besides the module lms.
FUNCTIONS = (
    "get_enabled_lms",
    "get_limit_lms",
    "get_size_lms",
    "reclaim_inactive",
    "set_enabled_lms",
    "set_limit_lms",
    "set_size_lms",
)


def autoload() -> None:
    """Add LMS to torch.cuda. Raises nothing, for that would be the end of `import torch`."""
    try:
        _add_to_torch()
    except Exception:
        message = "torch_lms cannot add Large Model Support to PyTorch"
        logging.getLogger(__name__).warning(message, exc_info=True)


def _add_to_torch() -> None:
    import torch.cuda

    if hasattr(torch.cuda, "lms"):
        return  # an LMS wheel, or a build from source: it has an engine of its own
    folder = os.path.join(__path__[0], "torch", "cuda")
    sys.path_importer_cache[folder] = FileFinder(folder, (_Loader, [".py"]))
    torch.cuda.__path__.append(folder)
    from torch.cuda import _lms_library, lms

    _lms_library.load = _load
    for name in FUNCTIONS:
        setattr(torch.cuda, name, getattr(lms, name))
    torch.cuda.__all__ += ["lms", *FUNCTIONS]


class _Loader(SourceFileLoader):
    """Loads modules of torch.cuda from this package, as if they lay where their names say.

    By the file that code names, Dynamo tells what is PyTorch's own and not to be traced.
    """

    def get_code(self, fullname: str) -> CodeType | None:
        import torch.cuda

        code = super().get_code(fullname)
        place = os.path.join(torch.cuda.__path__[0], os.path.basename(self.path))
        return code and _placed(code, place)


def _placed(code: CodeType, place: str) -> CodeType:
    constants = [
        _placed(part, place) if isinstance(part, CodeType) else part for part in code.co_consts
    ]
    return code.replace(co_filename=place, co_consts=tuple(constants))


def _load() -> None:
    from torch_lms import _engine

    _engine.load()
