"""Moving a job to another device, between two of its steps: its tensors get other storages.

What belongs to a job is what its generator can reach. Tensors stay the same objects, and those that
share a storage share the new one.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from functools import cache
from threading import Thread
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch.cuda._lms_library import engine

if TYPE_CHECKING:
    from .job import Job

# What leads to other things than a job's own.
_BORDERS = (ModuleType, type, CodeType, Thread, *(int, float, complex, bytes))
# Objects of one device for good.
_TIED = (
    *(torch.cuda.Stream, torch.cuda.Event, torch.cuda.CUDAGraph),
    *(torch.UntypedStorage, torch.TypedStorage, torch.Generator),
)


class _StaysError(Exception):
    """Why a job has to stay where it is."""


def move(job: Job, jobs: Iterable[Job], target: int) -> str:
    """Moves all that a job has on its device to another; its thread calls it, between two steps.

    Args:
        job: a generator.
        jobs: which may share tensors with it.
        target: the device.

    Returns:
        Why the job has to stay where it is, or an empty text. Nothing has changed then.

    Raises:
        torch.OutOfMemoryError: some tensors are on the one device then, and some on the other.
    """
    assert job.device is not None
    try:
        tensors = _tensors_of(job, job.device)
        _expect_own(tensors, [other for other in jobs if other is not job])
    except _StaysError as error:
        return str(error)
    sharing: dict[int, list[torch.Tensor]] = {}  # by storage
    for tensor in tensors:
        sharing.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
    with torch.no_grad():
        for sharers in sharing.values():
            storage = _moved_storage(sharers, target)
            for tensor in sharers:
                _give(tensor, storage)
    return ""


def _moved_storage(sharers: list[torch.Tensor], target: int) -> torch.UntypedStorage:
    """The same bytes on another device. `sharers`: all tensors that the job has of them."""
    storage = sharers[0].untyped_storage()
    # What has left the device is in host memory already, which goes with the storage if nobody else
    # has that.
    references = _references_of_a_call() + len(sharers)
    there = engine().move_to_device(storage, references, target)
    if there is None:
        bytes_here = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        there = bytes_here.cpu().to(torch.device("cuda", target))
    return there.untyped_storage()


@cache
def _references_of_a_call() -> int:
    """To a storage: as many as to one without tensors."""
    return engine().storage_references(torch.empty(1).untyped_storage())


def _give(tensor: torch.Tensor, storage: torch.UntypedStorage) -> None:
    moved = torch.empty(0, dtype=tensor.dtype, device=storage.device)
    moved.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    tensor.data = moved


# --- which tensors a job has ---


def _tensors_of(job: Job, source: int) -> list[torch.Tensor]:
    """All on a device that the job can reach.

    Raises:
        _StaysError: something cannot move.
    """
    if torch.cuda.current_stream(source) != torch.cuda.default_stream(source):
        raise _StaysError("its current stream is one of its own")
    found = [one for one in _reachable([job._generator]) if _is_to_move(one, source)]
    return [one for one in found if isinstance(one, torch.Tensor)]


def _is_to_move(one: Any, source: int) -> bool:
    if isinstance(one, torch.Tensor):
        if one.device.type != "cuda":
            return False
        if one.device.index != source:
            raise _StaysError(f"it has tensors on {one.device}, too")
        if not _is_plain(one):
            raise _StaysError(f"it has a tensor of the kind {type(one).__name__}, {one.layout}")
        if one.grad_fn is not None and not _is_spent(one.grad_fn):
            raise _StaysError("it may call backward for what earlier steps have computed")
        return True
    if isinstance(one, _TIED) and getattr(one, "device", None) != torch.device("cpu"):
        raise _StaysError(f"it has an object of the type {type(one).__name__}")
    if isinstance(one, (str, torch.device)) and str(one) == f"cuda:{source}":
        raise _StaysError(f'it names cuda:{source} and not just "cuda"')
    if isinstance(one, torch.autograd.graph.Node):
        raise _StaysError("it has nodes of a graph of autograd's")
    return False


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is numbers in a storage, and nothing more."""
    is_wrapper = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    is_other = tensor.is_quantized or tensor.is_conj() or tensor.is_neg()
    return tensor.layout == torch.strided and not is_wrapper and not is_other


def _is_spent(root: Any) -> bool:
    """Whether a backward pass has freed the graph, as after `loss.backward()`."""
    nodes, seen = [root], {root}
    for node in nodes:
        for name in (name for name in dir(node) if name.startswith(("_saved_", "saved_tensors"))):
            try:
                saved = getattr(node, name)
            except RuntimeError:
                return True
            if any(isinstance(one, torch.Tensor) for one in _listed(saved)):
                return False
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
    return False


def _listed(value: Any) -> Iterable[Any]:
    return value if isinstance(value, (list, tuple)) else [value]


def _expect_own(tensors: list[torch.Tensor], others: list[Job]) -> None:
    """No other job has been given what is in the storages of these tensors."""
    own = {tensor.untyped_storage()._cdata for tensor in tensors}
    for other in others:
        for one in _reachable([other._program]):
            is_plain = isinstance(one, torch.Tensor) and one.is_cuda and _is_plain(one)
            if is_plain and one.untyped_storage()._cdata in own:
                raise _StaysError(f"it shares a tensor with {other.name}")


def _reachable(roots: list[Any]) -> Iterator[Any]:
    """All objects that lead from these ones to tensors."""
    from .job import Job
    from .turns import Turns

    borders = (*_BORDERS, Job, Turns)
    found, seen = list(roots), set(map(id, roots))
    for one in found:  # which grows
        yield one
        for following in _referents(one):
            if id(following) not in seen and not isinstance(following, borders):
                seen.add(id(following))
                found.append(following)


def _referents(one: Any) -> list[Any]:
    following = gc.get_referents(one)
    around: tuple[Any, ...] = ()
    if isinstance(one, FunctionType):
        around = (one.__globals__, getattr(one, "__builtins__", None))
    elif isinstance(one, FrameType):
        around = (one.f_globals, one.f_builtins, one.f_back)
    elif isinstance(one, torch.Tensor) and (one.is_leaf or one.retains_grad):
        following.append(one.grad)
    return [each for each in following if not any(each is part for part in around)]
