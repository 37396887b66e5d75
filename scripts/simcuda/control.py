"""Inspecting and steering the simulation from inside a process that runs on it."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os


class SimulationError(Exception):
    """Something asked of the simulation cannot be done; the message says why."""


@dataclasses.dataclass(frozen=True)
class Stats:
    """Figures of one device; those of page-locked memory and launches are of the process."""

    capacity_bytes: int
    device_bytes: int  # allocated now by cudaMalloc
    peak_device_bytes: int  # since the start or reset_peak()
    host_to_device_bytes: int
    device_to_host_bytes: int
    page_locked_bytes: int
    peak_page_locked_bytes: int
    unsimulated_launches: int  # kernels of the wheel that nothing replaces: 0 in a sound run
    calls: dict[str, int]  # per function of the CUDA runtime


_FIGURES = [field.name for field in dataclasses.fields(Stats) if field.name != "calls"]


class _Stats(ctypes.Structure):
    """SimcudaStats of simcuda.h."""

    _fields_ = [(name, ctypes.c_uint64) for name in _FIGURES]


def active() -> bool:
    """Whether this process runs on the simulated device."""
    return hasattr(ctypes.CDLL(None), "simcudaGetStats")


@functools.cache
def library() -> ctypes.CDLL:
    """The preloaded simulation.

    Raises:
        SimulationError: this process does not run on it.
    """
    if not active():
        raise SimulationError(
            "this process does not run on the simulated device: "
            "start it with the variables of simcuda.environment()"
        )
    loaded = ctypes.CDLL(None)
    for name in ("simcudaGetCalls", "simcudaGetUnsimulated"):
        getattr(loaded, name).restype = ctypes.c_size_t
        getattr(loaded, name).argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    for name in ("simcudaHostTime", "simcudaDeviceTime", "simcudaBusyTime", "simcudaOwnTime"):
        getattr(loaded, name).restype = ctypes.c_int64
    loaded.simcudaEndHostWork.restype = ctypes.c_uint64
    loaded.simcudaWaitForHostWork.argtypes = [ctypes.c_uint64]
    loaded.simcudaSetFaults.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    return loaded


def stats(device: int = 0) -> Stats:
    """Figures of a device, in bytes and numbers of calls."""
    raw = _Stats()
    if library().simcudaGetStats(device, ctypes.byref(raw)) != 0:
        raise SimulationError(f"there is no simulated device {device}")
    values = {name: getattr(raw, name) for name in _FIGURES}
    return Stats(**values, calls=calls())


def calls() -> dict[str, int]:
    """Calls per function of the CUDA runtime since the process started."""
    lines = _text("simcudaGetCalls").splitlines()
    return {name: int(count) for name, count in (line.split() for line in lines)}


def unsimulated() -> list[str]:
    """Mangled names of the kernels that were launched though nothing simulates them."""
    return _text("simcudaGetUnsimulated").splitlines()


def reset_peak() -> None:
    """Makes the current amounts the peaks, for all devices and page-locked memory."""
    library().simcudaResetPeak()


def set_faults(plan: str) -> None:
    """Replaces the fault plan, such as "cudaMalloc:3"; calls are counted from now. "" ends it.

    Raises:
        SimulationError: the plan is malformed or names a function that cannot fail.
    """
    reason = ctypes.create_string_buffer(400)
    if library().simcudaSetFaults(plan.encode(), reason, len(reason)) != 0:
        raise SimulationError(reason.value.decode())


@dataclasses.dataclass(frozen=True)
class Busy:
    """Virtual nanoseconds for which the parts of a device have worked."""

    compute: int
    host_to_device: int
    device_to_host: int
    disk: int
    collective: int  # from when all ranks have come to one until it ends


def virtual_time() -> int:
    """The program's clock, in virtual nanoseconds since the process began.

    Raises:
        SimulationError: this process does not run in timed mode.
    """
    return _virtual(library().simcudaHostTime())


def device_time(device: int = 0) -> int:
    """When a device will have done all that is queued now, in virtual nanoseconds.

    Raises:
        SimulationError: this process does not run in timed mode, or has no such device.
    """
    return _virtual(library().simcudaDeviceTime(device))


def busy(device: int = 0) -> Busy:
    """For how long each part of a device has worked up to virtual_time(), work that ended counted.

    Raises:
        SimulationError: this process does not run in timed mode, or has no such device.
    """
    parts = range(len(dataclasses.fields(Busy)))
    return Busy(*(_virtual(library().simcudaBusyTime(device, part)) for part in parts))


def meter_own_time(on: bool) -> None:
    """Counts what own_time() tells, from now on or no longer."""
    library().simcudaMeterOwnTime(int(on))


def own_time() -> int:
    """Real nanoseconds that calls of the CUDA runtime and timed kernels took while metered.

    What the simulation itself costs the host; the rest of a program's time is the program's.
    """
    return int(library().simcudaOwnTime())


def timeline(path: str | os.PathLike[str] | None) -> None:
    """Writes what the devices do from now on to a file, as JSON lines; None ends it.

    A line is {"device": 0, "engine": "compute", "stream": 1, "name": "aten::mm", "start": ns,
    "end": ns}; an engine is compute, h2d, d2h, disk or collective. Lines are in the order of "end".

    Raises:
        SimulationError: this process does not run in timed mode, or the file cannot be written.
    """
    name = b"" if path is None else os.fsencode(path)
    if library().simcudaRecordTimeline(name) != 0:
        raise SimulationError(f"cannot write {path}, or this process has no virtual time")


def _virtual(nanoseconds: int) -> int:
    """What the library says, unless it says that it cannot."""
    if nanoseconds < 0:
        raise SimulationError('no virtual time here: it needs kernels="timed", and that device')
    return nanoseconds


def _text(function: str) -> str:
    """Text of unknown length from a function of the library."""
    get = getattr(library(), function)
    size = 0
    text = ctypes.create_string_buffer(1)
    while (needed := get(text, size)) > size:  # it may grow in between
        size = needed + 256
        text = ctypes.create_string_buffer(size)
    return text.value.decode()
