"""Where files of PyTorch's source tree are in its wheels.

Upstream's setup.py copies public headers below `torch/include/` and wraps each in a guard against
users of the stable ABI, so a header in the wheel is the upstream text between two fixed pieces.
"""

from __future__ import annotations

from enum import Enum, auto

from lms_cli.errors import SeriesError

GUARD = "!defined(TORCH_STABLE_ONLY) && !defined(TORCH_TARGET_VERSION)"
GUARD_OPEN = f"#if {GUARD}\n"
GUARD_CLOSE = (
    '\n#else\n#error "This file should not be included when either TORCH_STABLE_ONLY or '
    f'TORCH_TARGET_VERSION is defined."\n#endif  // {GUARD}\n'
)

HEADER_SUFFIXES = (".h", ".hpp", ".cuh")
COMPILED_FOLDER = "aten/src/ATen/cuda/"  # upstream's CMake compiles every .cpp below it
SOURCE_BUILD_ONLY = ("test/", "docs/")  # part of the exported patches, not of a wheel


class Kind(Enum):
    """What a file of the source tree becomes in a wheel."""

    HEADER = auto()  # copied below torch/include/
    PYTHON = auto()  # copied as it is
    COMPILED = auto()  # becomes part of a library
    ABSENT = auto()  # only exists in the source tree


def kind(upstream: str) -> Kind:
    """What becomes of a file.

    Raises:
        SeriesError: it is in a place that a graft cannot serve.
    """
    if upstream.startswith(SOURCE_BUILD_ONLY):
        return Kind.ABSENT
    if upstream.endswith(HEADER_SUFFIXES) and upstream.startswith(
        ("aten/src/ATen/", "c10/", "torch/csrc/")
    ):
        return Kind.HEADER
    if upstream.endswith((".py", ".pyi")) and upstream.startswith("torch/"):
        return Kind.PYTHON
    if upstream.endswith(".cpp") and upstream.startswith(COMPILED_FOLDER):
        return Kind.COMPILED
    raise SeriesError(
        f"{upstream} has no place in a wheel",
        "A series may hold public headers of ATen, c10 and torch/csrc, Python files of torch, "
        f"and sources in {COMPILED_FOLDER}.",
    )


def member(upstream: str) -> str:
    """The wheel member that a header or Python file of the source tree becomes."""
    if kind(upstream) is Kind.PYTHON:
        return upstream
    return "torch/include/" + upstream.removeprefix("aten/src/")


def unguarded(text: str) -> str:
    """A header of a wheel as it is in the source tree."""
    if text.startswith(GUARD_OPEN) and text.endswith(GUARD_CLOSE):
        return text[len(GUARD_OPEN) : -len(GUARD_CLOSE)]
    return text


def guarded(text: str) -> str:
    """A header of the source tree as upstream's setup.py puts it into a wheel."""
    return GUARD_OPEN + text + GUARD_CLOSE
