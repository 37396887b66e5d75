"""What is in device memory when most of it is in use, from the caching allocator's history."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

PARAMETERS, GRADIENTS, OPTIMIZER = "parameters", "gradients", "optimizer_state"
KEPT, REST = "kept", "activations"  # not named, and there all the time, or not


@dataclass(frozen=True)
class Block:
    """Memory that was handed out, and in which part of a history."""

    address: int
    size: int
    begin: int  # index of the event before which it was not there; -1: it always was
    end: int  # index of the event after which it was no more


def blocks(events: list[dict[str, Any]], alive: dict[int, int]) -> list[Block]:
    """All blocks of a history, at whose end those of `alive` (address: size) are there."""
    born: dict[int, tuple[int, int]] = {}
    found = []
    for index, event in enumerate(events):
        address, size = event["addr"], event["size"]
        if event["action"] == "alloc":
            born[address] = (index, size)
        elif event["action"] == "free_completed":
            begin, size = born.pop(address, (-1, size))
            found.append(Block(address, size, begin, index))
    for address, size in alive.items():
        begin, size = born.get(address, (-1, size))
        found.append(Block(address, size, begin, len(events)))
    return found


def at_peak(found: Iterable[Block]) -> list[Block]:
    """The blocks that are there when their sum is largest."""
    found = list(found)
    changes = sorted(
        [(block.begin, block.size) for block in found]
        + [(block.end, -block.size) for block in found]
    )
    total = most = peak = 0
    for index, change in changes:
        total += change
        if total > most:
            most, peak = total, index
    return [block for block in found if block.begin <= peak < block.end]


def sums(
    events: list[dict[str, Any]], alive: dict[int, int], names: dict[int, str], named_at: int
) -> dict[str, int]:
    """Bytes at the peak by what they are.

    Args:
        events: a history.
        alive: what is there at its end, sizes by address.
        names: what some blocks were before event `named_at`, by address.
        named_at: the index of an event.
    """
    result = dict.fromkeys((PARAMETERS, GRADIENTS, OPTIMIZER, KEPT, REST), 0)
    for block in at_peak(blocks(events, alive)):
        always = block.begin < 0 and block.end == len(events)
        name = KEPT if always else REST
        if block.begin < named_at <= block.end:
            name = names.get(block.address, name)
        result[name] += block.size
    return result


@dataclass
class Recording:
    """The history of device 0 over an iteration."""

    _names: dict[int, str] = field(default_factory=dict)
    _named_at: int = 0

    def begin(self) -> None:
        """Record from here on."""
        import torch

        torch.cuda.memory._record_memory_history("all", context=None, clear_history=True)

    def name_what_there_is(self) -> None:
        """Say of the blocks that are there what they are: before a step gradients are complete."""
        self._names = dict(_named())
        self._named_at = len(_snapshot()[0])

    def end(self) -> dict[str, int]:
        """Bytes at the peak by what they are."""
        import torch

        events, alive = _snapshot()
        torch.cuda.memory._record_memory_history(None)
        return sums(events, alive, self._names, self._named_at)


def _snapshot() -> tuple[list[dict[str, Any]], dict[int, int]]:
    """The history so far, and the sizes of the blocks in use."""
    import torch

    found = torch.cuda.memory._snapshot(0)
    alive = {
        block["address"]: block["requested_size"]
        for segment in found["segments"]
        if segment["device"] == 0
        for block in segment["blocks"]
        if block["state"].startswith("active")
    }
    return found["device_traces"][0], alive


def _named() -> Iterator[tuple[int, str]]:
    """Addresses of all parameters, gradients and optimizer states of the process, and which."""
    import torch

    objects = gc.get_objects()
    for one in objects:
        if issubclass(type(one), torch.optim.Optimizer):
            for tensor in _tensors(list(one.state.values())):
                yield from ((address, OPTIMIZER) for address in _addresses(tensor))
    for one in objects:
        if issubclass(type(one), torch.nn.Parameter):
            yield from ((address, PARAMETERS) for address in _addresses(one))
            if one.grad is not None:
                yield from ((address, GRADIENTS) for address in _addresses(one.grad))


def _tensors(value: Any) -> Iterator[Any]:
    """Those in nested lists and dictionaries."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)


def _addresses(tensor: Any) -> Iterator[int]:
    """Where the storages of a tensor begin, of a wrapper those of what it wraps."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _addresses(getattr(tensor, name))
    elif tensor.is_cuda:
        yield tensor.untyped_storage().data_ptr()
