"""A stream that stands still for as long as a test wants."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def held(stream: torch.cuda.Stream) -> Iterator[None]:
    """What is queued on the stream in this context runs after it, however slow the machine is."""
    opened = threading.Event()

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)  # type: ignore[untyped-decorator]
    def wait(_data: object) -> None:
        opened.wait()

    launch = ctypes.CDLL(None).cudaLaunchHostFunc
    assert launch(ctypes.c_void_p(stream.cuda_stream), wait, None) == 0
    try:
        yield
    finally:
        opened.set()
        stream.synchronize()  # `wait` must outlive its call
