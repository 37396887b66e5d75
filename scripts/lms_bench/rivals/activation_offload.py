"""Activation offloading with side streams, in the manner of torchtune's OffloadActivations.

A saved activation is copied to a page-locked buffer on one side stream while compute goes on, and
comes back on another. Parameters and small tensors stay. The last few activations are still on the
device when backward begins, and are used from there. Unlike torchtune's, the buffers are pooled:
page-locking one for every tensor would take longer than the copies.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from lms_bench.workloads.training import Training

SMALLEST = 1024  # bytes; torchtune's default
KEPT = 5  # activations whose copies may be under way; torchtune's default


class Pool:
    """Page-locked buffers by size, used again in the next iteration.

    The streams below order all uses of a buffer, so the host waits for nothing.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[torch.Tensor]] = {}

    def take(self, size: int) -> torch.Tensor:
        """A buffer of `size` bytes."""
        free = self._free.setdefault(size, [])
        return free.pop() if free else torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def give(self, buffer: torch.Tensor) -> None:
        """Takes a buffer back."""
        self._free[buffer.numel()].append(buffer)


@dataclass(eq=False)  # a member of a queue is found by identity
class Saved:
    """An activation that has been sent to the host; its end gives the buffer back."""

    pool: Pool
    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    buffer: torch.Tensor  # page-locked
    copied: torch.cuda.Event
    here: torch.Tensor | None  # on the device until the copy is known to be done

    def __del__(self) -> None:
        self.pool.give(self.buffer)


class Offload:
    """The two hooks and what they share."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self._parameters = {parameter.untyped_storage()._cdata for parameter in parameters}
        self._pool = Pool()
        self._out, self._in = torch.cuda.Stream(), torch.cuda.Stream()
        self._leaving: deque[Saved] = deque()

    def pack(self, tensor: torch.Tensor) -> Any:
        """Starts a copy to the host; what is no activation, or small, stays."""
        small = tensor.numel() * tensor.element_size() < SMALLEST
        if not tensor.is_cuda or small or tensor.untyped_storage()._cdata in self._parameters:
            return tensor
        while len(self._leaving) >= KEPT:
            self._let_go(self._leaving.popleft())
        self._out.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._out):
            # A view with gaps would be gathered by the host, which would wait for the device.
            dense = tensor if _is_dense(tensor) else tensor.contiguous()
            buffer = self._pool.take(dense.numel() * dense.element_size())
            copied = torch.cuda.Event()
            saved = Saved(
                self._pool, dense.size(), dense.stride(), dense.dtype, buffer, copied, tensor
            )
            _shaped(saved).copy_(dense, non_blocking=True)
            copied.record()
        self._leaving.append(saved)
        return saved

    def unpack(self, saved: Any) -> torch.Tensor:
        """Brings an activation back, unless it has not left."""
        if isinstance(saved, torch.Tensor):
            return saved
        if saved in self._leaving:
            self._leaving.remove(saved)
            result = saved.here
            self._let_go(saved)
            return result
        with torch.cuda.stream(self._in):
            self._in.wait_event(saved.copied)
            result = _shaped(saved).to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(self._in)
        result.record_stream(torch.cuda.current_stream())
        return result

    def _let_go(self, saved: Saved) -> None:
        """Gives the device memory back once compute is ordered after the copy."""
        torch.cuda.current_stream().wait_event(saved.copied)
        saved.here = None


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether there are no gaps between its elements, in whatever order they are."""
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def _shaped(saved: Saved) -> torch.Tensor:
    """A page-locked buffer as a tensor like the one that was saved."""
    return saved.buffer.view(saved.dtype).as_strided(saved.size, saved.stride)


def prepare(training: Training) -> None:
    """Copy what the forward pass saves to the host, beside the computing."""
    offload = Offload(list(training.model.parameters()))
    training.around_forward = partial(saved_tensors_hooks, offload.pack, offload.unpack)
