"""How fast storages go to a disk and come back, beside what fio reaches in the same folder.

    ./scripts/lms run docs/benchmarks/disk_speed.py FOLDER    # needs fio (Debian's package)

Pages tensors of 256 MiB in host memory that holds four of them, so all others go to the disk and
come back. fio writes and reads as much with as many requests of the same size in flight, before
and after, since disks are faster at some times than at others.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch

MIB = 1 << 20
PIECE, IN_FLIGHT = 4 * MIB, 8  # of the engine: LMSHostDiskThreads.cpp
TENSOR, COUNT = 256 * MIB, 24
lms = torch.cuda.lms


def by_fio(folder: Path) -> dict[str, float]:
    """GB/s by direction."""
    found = {}
    for way in ("write", "read"):
        command = (
            f"fio --name=lms --directory={folder} --rw={way} --size={2 * TENSOR * 4} --direct=1"
        )
        command += f" --bs={PIECE} --ioengine=libaio --iodepth={IN_FLIGHT} --output-format=json"
        done = subprocess.run(command.split(), check=True, capture_output=True, text=True)
        found[way] = json.loads(done.stdout)["jobs"][0][way]["bw_bytes"] / 1e9
    for path in folder.glob("lms.*"):
        path.unlink()
    return found


def by_lms(folder: Path) -> dict[str, float]:
    """GB/s by direction, while the disk works."""
    lms.set_host_limit(4 * TENSOR)
    lms.set_disk(folder, 2 * COUNT * TENSOR)
    torch.cuda.set_limit_lms(3 * TENSOR)
    torch.cuda.set_enabled_lms(True)
    tensors = [torch.full((TENSOR // 4,), float(i), device="cuda") for i in range(COUNT)]
    for number, tensor in enumerate(tensors):
        assert tensor[-1].item() == number
    torch.cuda.synchronize()
    stats = lms.stats()
    return {
        way: stats[f"lms.disk_{way}.bytes"] / stats[f"lms.disk_{way}.us"] / 1e3
        for way in ("write", "read")
    }


def main() -> None:
    """Command line."""
    folder = Path(sys.argv[1])
    before = by_fio(folder)
    found = by_lms(folder)
    after = by_fio(folder)
    for way in ("write", "read"):
        fio = (before[way] + after[way]) / 2
        print(
            f"{way}: LMS {found[way]:.2f} GB/s, fio {before[way]:.2f} before and "
            f"{after[way]:.2f} after: {100 * found[way] / fio:.0f} %"
        )


if __name__ == "__main__":
    main()
