"""Models from checkpoints and to them, a tensor at a time: they may be larger than host memory.

The format is that of safetensors: the length of a header in 8 bytes, the header in JSON, and the
tensors' bytes (https://huggingface.co/docs/safetensors). It is read and written here, since the
library wants all tensors of a file at once in order to write it.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ._lms_library import engine, is_loaded

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_LONGEST_HEADER = 100 << 20  # bytes, as the library has it
_INDEX = ".safetensors.index.json"
_SHOWN = 5  # names in a message
_libc = ctypes.CDLL(None)


class _Mapped:
    """A file where this process has mapped it, its pages as they are in the file."""

    def __init__(self, path: Path) -> None:
        name = os.path.realpath(path)
        lines = (line.split(maxsplit=5) for line in _read_lines("/proc/self/maps"))
        spans = (fields[0].split("-") for fields in lines if fields[5:] == [name])
        self._ranges = [(int(begin, 16), int(end, 16)) for begin, end in spans]

    def let_go(self, tensor: torch.Tensor) -> None:
        """Take a view of the file out of the process's memory; the file has its bytes.

        Nothing happens to a tensor that is a copy.
        """
        storage = tensor.untyped_storage()
        begin, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        if any(first <= begin < end <= last for first, last in self._ranges):
            begin -= begin % mmap.PAGESIZE
            _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


def _read_lines(path: str) -> list[str]:
    with open(path, errors="replace") as file:
        return file.read().splitlines()


@dataclass(frozen=True)
class _Stored:
    """A tensor of a checkpoint."""

    shape: tuple[int, ...]
    read: Callable[[], torch.Tensor]  # on the host; it may be a view of the file
    file: _Mapped


# --- reading ---


def _stored_in(checkpoint: Path) -> dict[str, _Stored]:
    if checkpoint.is_dir():
        checkpoint = _only_one_in(checkpoint)
    if checkpoint.name.endswith(".index.json"):
        files = set(json.loads(checkpoint.read_text())["weight_map"].values())
        stored: dict[str, _Stored] = {}
        for file in sorted(files):
            stored |= _stored_in_safetensors(checkpoint.parent / file)
        return stored
    if checkpoint.suffix == ".safetensors":
        return _stored_in_safetensors(checkpoint)
    return _stored_by_torch(checkpoint)


def _only_one_in(folder: Path) -> Path:
    found = sorted(folder.glob("*" + _INDEX)) or sorted(folder.glob("*.safetensors"))
    if len(found) != 1:
        raise FileNotFoundError(
            f"{folder} has {len(found)} files *{_INDEX} or *.safetensors: name the one to load"
        )
    return found[0]


def _stored_in_safetensors(path: Path) -> dict[str, _Stored]:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _LONGEST_HEADER):
            raise ValueError(f"{path} is no file of safetensors, or not all of one")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise ValueError(f"{path}: its header is broken: {error}") from None
        header.pop("__metadata__", None)
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped, start = _Mapped(path), 8 + length
    return {name: _stored_at(path, content, mapped, start, name, header[name]) for name in header}


def _stored_at(
    path: Path, content: mmap.mmap, mapped: _Mapped, start: int, name: str, entry: Any
) -> _Stored:
    dtype = _DTYPES.get(entry["dtype"])
    if dtype is None:
        raise ValueError(f"{path}: {name} has the dtype {entry['dtype']}, which is not known")
    shape = tuple(entry["shape"])
    begin, end = (start + offset for offset in entry["data_offsets"])
    if end > len(content) or end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{path} is cut short, or broken: {name} is not all there")

    def read() -> torch.Tensor:
        if begin == end:
            return torch.empty(shape, dtype=dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nobody writes to the file by way of the tensor
            data = torch.frombuffer(content, dtype=torch.uint8, count=end - begin, offset=begin)
        if begin % dtype.itemsize:
            data = data.clone()
        return data.view(dtype).view(shape)

    return _Stored(shape, read, mapped)


def _stored_by_torch(path: Path) -> dict[str, _Stored]:
    content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    if not isinstance(content, Mapping) or not all(
        isinstance(value, torch.Tensor) for value in content.values()
    ):
        raise ValueError(f"{path} is no state_dict of a module: it has more than tensors by name")
    mapped = _Mapped(path)
    return {
        name: _Stored(tuple(tensor.shape), lambda tensor=tensor: tensor, mapped)  # type: ignore[misc]
        for name, tensor in content.items()
    }


# --- what it is for ---


class _Places:
    """A module's tensors, each with all the attributes that it is the value of."""

    def __init__(self, model: nn.Module) -> None:
        self.tensors: dict[str, torch.Tensor] = dict(model.state_dict(keep_vars=True))
        for name, tensor in self.tensors.items():
            _check_plain(name, tensor)
        self._owners: dict[torch.Tensor, list[tuple[dict[str, Any], str]]] = {}
        self.left_out: list[str] = []  # without a value, and in no checkpoint
        saved = set(self.tensors.values())
        for prefix, module in model.named_modules(remove_duplicate=True):
            for attributes in (module._parameters, module._buffers):
                for name, tensor in attributes.items():
                    if tensor is None:
                        continue
                    self._owners.setdefault(tensor, []).append((attributes, name))
                    if tensor.is_meta and tensor not in saved:
                        self.left_out.append(f"{prefix}.{name}".lstrip("."))

    def replace(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        if isinstance(tensor, nn.Parameter):
            value = nn.Parameter(value, requires_grad=tensor.requires_grad)
        for attributes, name in self._owners[tensor]:
            attributes[name] = value


def _check_plain(name: str, tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor) or is_traceable_wrapper_subclass(tensor):
        raise ValueError(
            f"{name} is a {type(tensor).__name__}, which has no bytes of its own as tensors have "
            "them. For sharded weights use torch.distributed.checkpoint."
        )


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more


def _check(places: _Places, stored: dict[str, _Stored], path: Path, strict: bool) -> None:
    """Raises before anything is loaded."""
    wrong = [
        f"{name}: {list(stored[name].shape)} instead of {list(tensor.shape)}"
        for name, tensor in places.tensors.items()
        if name in stored and stored[name].shape != tuple(tensor.shape)
    ]
    if wrong:
        raise ValueError(f"{path} has tensors of other shapes than the model: {_some(wrong)}")
    given = {places.tensors[name] for name in stored if name in places.tensors}
    missing = [name for name, tensor in places.tensors.items() if tensor not in given]
    empty = [name for name in missing if places.tensors[name].is_meta]
    unexpected = [name for name in stored if name not in places.tensors]
    if empty or (strict and missing):
        raise ValueError(f"{path} lacks what the model has: {_some(empty or missing)}")
    if strict and unexpected:
        raise ValueError(f"{path} has what the model lacks: {_some(unexpected)}")
    if places.left_out:
        raise ValueError(
            f"{_some(places.left_out)} of the model have no values, and checkpoints have none of "
            "them: they are buffers with persistent=False. Make these on a device other than meta."
        )


def _on_host(like: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Return the source with dtype and strides of another tensor: itself, if it has them."""
    is_plain = like.is_contiguous() and source.is_contiguous() and not source.is_conj()
    if is_plain and source.dtype == like.dtype and not source.is_neg():
        return source
    return torch.empty_like(like, device="cpu").copy_(source)


def _made(like: torch.Tensor, stored: _Stored, device: torch.device) -> torch.Tensor:
    """Return a tensor on the device; in the host's memory, if the device has none for it."""
    source = stored.read()
    with_bytes = _on_host(like, source)
    value = engine().load_to_host(with_bytes, device.index) if is_loaded() else None
    if value is None:
        value = torch.empty_like(like, device=device).copy_(with_bytes)
    stored.file.let_go(source)
    return value


@torch.no_grad()
def load(model: nn.Module, path: Path, device: torch.device, strict: bool) -> None:
    """See `torch.cuda.lms.load`."""
    stored, places = _stored_in(path), _Places(model)
    _check(places, stored, path, strict)
    torch.cuda.init()  # the engine does not
    given: dict[torch.Tensor, _Stored] = {}  # by its first name
    for name, tensor in places.tensors.items():
        if name in stored:
            given.setdefault(tensor, stored[name])
    # All are there before the model has one: memory may run out.
    made = {tensor: _made(tensor, kept, device) for tensor, kept in given.items() if tensor.is_meta}
    for tensor, kept in given.items():
        if not tensor.is_meta:
            source = kept.read()
            tensor.copy_(source)
            kept.file.let_go(source)
    for tensor, value in made.items():
        places.replace(tensor, value)


# --- writing ---


def _distinct(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Without those that are another one's by a second name, largest numbers first.

    So each begins at a multiple of the size of its numbers.
    """
    found: dict[Any, str] = {}
    for name, tensor in tensors.items():
        _check_plain(name, tensor)
        if tensor.dtype not in _NAMES:
            raise ValueError(f"{name} cannot be saved: files of safetensors have no {tensor.dtype}")
        if tensor.is_meta:
            raise ValueError(f"{name} cannot be saved: it has no value, on the device meta")
        place = (tensor.untyped_storage()._cdata, tensor.storage_offset())
        found.setdefault((*place, tensor.shape, tensor.stride(), tensor.dtype), name)
    names = sorted(found.values(), key=lambda name: (-tensors[name].itemsize, name))
    return {name: tensors[name] for name in names}


def _parts(tensors: dict[str, torch.Tensor], most: int | None) -> list[dict[str, torch.Tensor]]:
    """Of at most so many bytes, unless a tensor has more."""
    parts: list[dict[str, torch.Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        size += tensor.nbytes
        if most is not None and size > most and parts[-1]:
            parts.append({})
            size = tensor.nbytes
        parts[-1][name] = tensor
    return parts


def _write(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of 8
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for tensor in tensors.values():
            if tensor.nbytes:
                host = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
                file.write((ctypes.c_char * host.nbytes).from_address(host.data_ptr()))
        file.flush()
        os.fsync(file.fileno())


def save(tensors: Mapping[str, torch.Tensor], path: Path, most: int | None) -> None:
    """See `torch.cuda.lms.save`."""
    parts = _parts(_distinct(tensors), most)
    if most is None:
        files, folder = [path.name], path.parent
    else:
        files, folder = _names_of_parts(len(parts)), path
        folder.mkdir(exist_ok=True)
    written: list[Path] = []
    try:
        for file, part in zip(files, parts):
            written.append(folder / f".{file}.{os.getpid()}")
            _write(written[-1], part)
        if most is not None:
            written.append(folder / f".index.{os.getpid()}")
            written[-1].write_text(_index_of(dict(zip(files, parts))))
            files.append("model" + _INDEX)
        for path_written, file in zip(written, files):
            os.replace(path_written, folder / file)
    finally:
        for path_written in written:
            path_written.unlink(missing_ok=True)


def _names_of_parts(count: int) -> list[str]:
    return [f"model-{number + 1:05}-of-{count:05}.safetensors" for number in range(count)]


def _index_of(parts: dict[str, dict[str, torch.Tensor]]) -> str:
    size = sum(tensor.nbytes for part in parts.values() for tensor in part.values())
    places = {name: file for file, part in parts.items() for name in part}
    return json.dumps({"metadata": {"total_size": size}, "weight_map": places}, indent=2)
