"""The processes of a training on several devices: one for each, which is a rank.

Standard library only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

POLL = 0.1  # seconds
_RANK, _SIZE, _STORE = "RANK", "WORLD_SIZE", "LMS_BENCH_STORE"


def is_rank() -> bool:
    """Whether this process is one of them."""
    return _STORE in os.environ


def run(command: list[str], size: int) -> str:
    """Run a program in `size` processes; return what the first printed, or one that failed.

    When one ends with a status that is not 0, the others are killed: they would wait for it.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = [_start(command, rank, size, folder) for rank in range(size)]
        try:
            told = _first_to_tell(processes)
            return _printed(folder, told).read_text(encoding="utf-8")
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _start(command: list[str], rank: int, size: int, folder: Path) -> subprocess.Popen[bytes]:
    variables = {_RANK: str(rank), _SIZE: str(size), _STORE: str(folder / "store")}
    # Which events are free is a matter of real time, and new ones take longer.
    variables["TORCH_NCCL_CUDA_EVENT_CACHE"] = "0"
    with _printed(folder, rank).open("wb") as output:
        return subprocess.Popen(
            command,
            env=os.environ | variables,
            stdin=subprocess.PIPE,  # closed when this process ends
            stdout=output,
        )


def _printed(folder: Path, rank: int) -> Path:
    """The file for what a rank prints."""
    return folder / f"{rank}.out"


def _first_to_tell(processes: list[subprocess.Popen[bytes]]) -> int:
    """Waits until all have ended, or one has failed; returns the rank to believe."""
    while True:
        statuses = [process.poll() for process in processes]
        for rank, status in enumerate(statuses):
            if status:
                return rank
        if None not in statuses:
            return 0
        time.sleep(POLL)


def join() -> None:
    """Make PyTorch's process group of the processes; each uses its first device."""
    import torch
    import torch.distributed as dist

    threading.Thread(target=_end_with_parent, daemon=True).start()
    dist.init_process_group(
        "nccl",
        init_method=f"file://{os.environ[_STORE]}",
        rank=int(os.environ[_RANK]),
        world_size=int(os.environ[_SIZE]),
        device_id=torch.device("cuda", 0),
    )


def _end_with_parent() -> None:
    """Whoever kills the parent does not know of this process."""
    sys.stdin.read()
    os._exit(1)
