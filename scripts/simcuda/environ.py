"""The environment of a process on the simulated device."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from simcuda import cards
from simcuda.control import SimulationError

_CHOICES = {
    "kernels": ("inline", "async", "timed"),
    "schedule": (None, "early", "late", "split"),
}
_SIZE = re.compile(r"[0-9]{1,18}[KMGT]?")
_FAULTS = re.compile(r"[A-Za-z_0-9]+:[0-9]+-?(,[A-Za-z_0-9]+:[0-9]+-?)*")


def environment(
    build_dir: str | os.PathLike[str],
    *,
    capacity: int | str | None = None,
    devices: int = 1,
    shared: str | os.PathLike[str] | None = None,
    kernels: str = "inline",
    card: str | None = None,
    timeline: str | os.PathLike[str] | None = None,
    driver_lock: bool = False,
    copy_bandwidth: int | None = None,
    schedule: str | None = None,
    faults: str | None = None,
    poison: int = 1,
    cublas: bool = False,
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Environment variables for a child process that shall see simulated devices.

    Args:
        build_dir: what build.py was given as --out.
        capacity: memory of each device, in bytes, or text such as "64M"; by default the card's, or
            1 GiB without a card.
        devices: how many there are, 1 to 16.
        shared: a file; processes that name the same one have the memory of its devices together.
        kernels: "inline" computes kernels on the calling thread, "async" on their stream's worker
            while the host runs ahead; "timed" computes nothing: work takes virtual time.
        card: whose times to take, a name in cards.json; for kernels="timed", which needs one.
        timeline: file to write what the devices do and when; with kernels="timed" only.
        driver_lock: whether calls wait while a thread in the background page-locks memory; with
            kernels="timed" only.
        copy_bandwidth: bytes per second each way between host and device; None is unlimited.
        schedule: None runs work as it comes; "early", "late" and "split" see the README.
        faults: calls that shall fail, such as "cudaMalloc:3,cudaHostAlloc:1-".
        poison: 0 for none; 1 fills fresh and freed device memory; 2 also blocks that PyTorch's
            allocator hands out, on the stream that asked for them, which LMS does not allow.
        cublas: whether products take workspaces of cuBLAS; CUBLAS_WORKSPACE_CONFIG says how large.
        base: the environment to add to; the current one by default.

    Raises:
        SimulationError: a value is wrong, or `build_dir` holds no built simulation.
    """
    lib = Path(build_dir).resolve() / "lib"
    if not (lib / "libsimops.so").is_file():
        raise SimulationError(f"no simulated device in {build_dir}: run build.py --out {build_dir}")
    _check_choice("kernels", kernels)
    _check_choice("schedule", schedule)
    if poison not in (0, 1, 2):
        raise SimulationError(f"poison={poison} is not valid: expected 0, 1 or 2")
    _check_timed(kernels, card, timeline or driver_lock, schedule, copy_bandwidth)
    if not 1 <= devices <= 16:
        raise SimulationError(f"devices={devices} is not valid: expected 1 to 16")
    if faults and not _FAULTS.fullmatch(faults):
        raise SimulationError(f"faults={faults!r} is not valid: expected FUNCTION:N or FUNCTION:N-")
    result = dict(os.environ if base is None else base)
    for name in [name for name in result if name.startswith("SIMCUDA_")]:
        del result[name]
    result.pop("CUDA_VISIBLE_DEVICES", None)  # it numbers the machine's own devices
    libraries = _without_spaces(lib)
    preload = [str(libraries / f"lib{name}.so") for name in ("simcuda", "simnvml", "simnccl")]
    _prepend(result, "LD_PRELOAD", preload)
    _prepend(result, "PYTHONPATH", [str(Path(__file__).resolve().parent.parent)])
    result["SIMCUDA_OPS_LIBRARY"] = str(lib / "libsimops.so")
    result["TRITON_LIBCUDA_PATH"] = str(libraries)
    # Memory of large tensors stays in the process, bytes: the system takes long for new pages.
    result.setdefault("MALLOC_MMAP_THRESHOLD_", str(32 << 20))
    result.setdefault("MALLOC_TRIM_THRESHOLD_", str(4 << 30))
    # Its kernels run in the process that has compiled them: see triton_kernels.py.
    result["TORCHINDUCTOR_FX_GRAPH_CACHE"] = "0"
    result["TORCHINDUCTOR_AUTOGRAD_CACHE"] = "0"
    result["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    result["TORCH_DYNAMO_AUTOMATIC_DYNAMIC_LOCAL_PGO"] = "0"  # graphs as in the first run
    result["TORCHINDUCTOR_LAYOUT_OPTIMIZATION"] = "0"  # that is for cuDNN, which is off
    if capacity is None:
        capacity = int(cards.card(card)["memory"]) if card else "1G"
    result["SIMCUDA_CAPACITY"] = _size("capacity", capacity)
    result["SIMCUDA_DEVICES"] = str(devices)
    if shared is not None:
        result["SIMCUDA_SHARED"] = str(Path(shared).resolve())
    result["SIMCUDA_KERNELS"] = kernels
    if card:
        result["SIMCUDA_CARD"] = cards.describe(card)
    if timeline is not None:
        result["SIMCUDA_TIMELINE"] = str(Path(timeline).resolve())
    if driver_lock:
        result["SIMCUDA_DRIVER_LOCK"] = "1"
    result["SIMCUDA_POISON"] = str(poison)
    if copy_bandwidth is not None:
        result["SIMCUDA_COPY_BANDWIDTH"] = _size("copy_bandwidth", copy_bandwidth)
    if schedule is not None:
        result["SIMCUDA_SCHEDULE"] = schedule
    if faults:
        result["SIMCUDA_FAULTS"] = faults
    if cublas:
        result["SIMCUDA_CUBLAS"] = "1"
    if kernels == "async":
        # Workers of several streams, each with a pool of threads, would fight for the cores.
        result.setdefault("OMP_NUM_THREADS", "1")
    return result


def _without_spaces(folder: Path) -> Path:
    """The folder, by a path that LD_PRELOAD can name: spaces and colons end one there.

    It is then a link in a folder of the user's own, where nobody else can put one.
    """
    if not re.search(r"[\s:]", str(folder)):
        return folder
    links = Path(tempfile.gettempdir()) / f"simcuda-{os.getuid()}"
    links.mkdir(mode=0o700, exist_ok=True)
    found = links.lstat()
    if re.search(r"[\s:]", str(links)) or (found.st_uid, found.st_mode & 0o777) != (
        os.getuid(),
        0o700,
    ):
        raise SimulationError(
            f"LD_PRELOAD cannot name {folder}, nor is {links} a folder of this user alone to "
            "put a link into: set TMPDIR, or build in a folder without spaces"
        )
    link = links / hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    if not link.is_symlink():
        temporary = Path(tempfile.mktemp(dir=links))
        temporary.symlink_to(folder)
        temporary.replace(link)
    return link


def _check_choice(name: str, value: str | None) -> None:
    if value not in _CHOICES[name]:
        expected = ", ".join(str(choice) for choice in _CHOICES[name])
        raise SimulationError(f"{name}={value!r} is not valid: expected one of {expected}")


def _check_timed(
    kernels: str,
    card: str | None,
    extras: object,
    schedule: str | None,
    copy_bandwidth: int | None,
) -> None:
    """Virtual time needs a card; the rest knows nothing of it."""
    if kernels == "timed":
        if card is None:
            raise SimulationError(
                f'kernels="timed" needs a card: one of {", ".join(cards.names())}'
            )
        if schedule is not None or copy_bandwidth is not None:
            raise SimulationError('schedule and copy_bandwidth mean nothing with kernels="timed"')
    elif card is not None or extras:
        raise SimulationError('card, timeline and driver_lock need kernels="timed"')


def _size(name: str, value: int | str) -> str:
    text = str(value)
    if not _SIZE.fullmatch(text) or int(text.rstrip("KMGT")) == 0:
        raise SimulationError(f"{name}={value!r} is not valid: expected bytes, such as 64M or 2G")
    return text


def _prepend(variables: dict[str, str], name: str, paths: list[str]) -> None:
    """Puts paths first in a list of paths, once."""
    present = [path for path in variables.get(name, "").split(":") if path and path not in paths]
    variables[name] = ":".join(paths + present)
