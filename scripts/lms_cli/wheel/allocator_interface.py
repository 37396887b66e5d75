"""The interface of CUDA's allocator in a release, and what the engine forwards of it.

A function that becomes pure virtual stops the compiler. One with a default body does not: without
a forwarding function the native allocator would never hear of the call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from lms_cli.checks import Findings
from lms_cli.releases import Release
from lms_cli.series.series import Series
from lms_cli.wheel.wheelfile import Wheel

COMPAT = "aten/src/ATen/cuda/detail/LMSCompat.h"
DIRECTIVE = re.compile(r"#\s*(if|elif|else|endif)\b(?:\s+LMS_TORCH_AT_LEAST\((\d+)\))?")
CLASSES = {  # by the header that has them
    "torch/include/c10/core/Allocator.h": ("Allocator",),
    "torch/include/c10/core/CachingDeviceAllocator.h": ("DeviceAllocator",),
    "torch/include/c10/cuda/CUDACachingAllocator.h": ("CUDAAllocator",),
}


def findings(official: Wheel, loaded: Series, release: Release) -> Findings:
    """Functions of the allocator in an official wheel that a series does not override."""
    compat = loaded.new_files.get(COMPAT, "")
    seen = _preprocessed(compat, int(release.version.split(".")[1]))
    functions = [
        function
        for header, classes in CLASSES.items()
        for function in _virtual_functions(official.text(header) or "", classes)
    ]
    missing = [
        declaration
        for name, declaration in functions
        if not re.search(rf"\b{name}\([^;{{}}]*\)\s*(?:const\s+)?(?:override|final)\b", seen)
    ]
    return missing, f"{len(functions)} functions, all forwarded"


def _preprocessed(text: str, minor: int) -> str:
    """The lines that the compiler sees with PyTorch 2.`minor`; other conditions count as true."""
    lines = []
    branches: list[tuple[bool, bool]] = []  # of each open #if: seen now, seen before
    for line in text.splitlines():
        if not (directive := DIRECTIVE.match(line)):
            if all(now for now, _ in branches):
                lines.append(line)
            continue
        kind, least = directive.groups()
        _, before = branches.pop() if kind != "if" else (False, False)
        if kind != "endif":
            is_true = least is None or minor >= int(least)
            branches.append((is_true and not before, is_true or before))
    return "\n".join(lines)


def _virtual_functions(header: str, classes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Name and declaration of each virtual function of some classes, destructors aside."""
    heads = rf"^(?:class|struct) (?:\w+ )?(?:{'|'.join(classes)})\b[^;{{]*{{"
    for body in re.findall(rf"{heads}(.*?)^}};", header, re.MULTILINE | re.DOTALL):
        text = re.sub(r"\s+", " ", re.sub(r"//.*", "", body))
        text = re.sub(r" = \{[^{}]*\}", "", text)  # default arguments
        for match in re.finditer(r"virtual [^;{(]*?\b(\w+) ?\([^;{]*\)[^;{]*", text):
            if match[1] not in classes:
                yield match[1], match[0].strip()
