"""The interface of CUDA's allocator in a release, and what the engine forwards of it.

A function that becomes pure virtual stops the compiler. One with a default body does not: without
a forwarding function the native allocator would never hear of the call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from lms_cli.wheelfile import Wheel

COMPAT = "aten/src/ATen/cuda/detail/LMSCompat.h"
CLASSES = {  # by the header that has them
    "torch/include/c10/core/Allocator.h": ("Allocator",),
    "torch/include/c10/core/CachingDeviceAllocator.h": ("DeviceAllocator",),
    "torch/include/c10/cuda/CUDACachingAllocator.h": ("CUDAAllocator",),
}


def missing(official: Wheel, compat: str) -> list[str]:
    """Declarations of the allocator's virtual functions that a text has no function for.

    Args:
        official: a wheel of the release.
        compat: the text of `COMPAT`.
    """
    return [
        declaration
        for header, classes in CLASSES.items()
        for name, declaration in _virtual_functions(official.text(header) or "", classes)
        if not re.search(rf"\b{name}\(", compat)
    ]


def _virtual_functions(header: str, classes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Name and declaration of each virtual function of some classes, destructors aside."""
    heads = rf"^(?:class|struct) (?:\w+ )?(?:{'|'.join(classes)})\b[^;{{]*{{"
    for body in re.findall(rf"{heads}(.*?)^}};", header, re.MULTILINE | re.DOTALL):
        text = re.sub(r"\s+", " ", re.sub(r"//.*", "", body))
        for match in re.finditer(r"virtual [^;{(]*?\b(\w+) ?\([^;{]*\)[^;{]*", text):
            if match[1] not in classes:
                yield match[1], match[0].strip()
