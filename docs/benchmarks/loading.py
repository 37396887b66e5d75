"""What it costs to load a model of three times the device's memory.

Usage: ./scripts/lms run --device sim docs/benchmarks/loading.py

Loads 3 GiB of weights on 1 GiB of a simulated A100, in virtual time: once by way of the device, as
`load_state_dict` into a model on the device does it, and once with `torch.cuda.lms.load`. The host
has memory for all of them, or for 1 GiB, and then a disk. Prints what crossed the link to the
device and back, what the disk wrote, and how long that took until the device was done: with
loading, and with the first pass through the model. That the processor reads the file and copies
takes no virtual time.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import children
import simcuda
import torch
from torch import nn

GIB = 1 << 30
WIDTH, LAYERS = 8192, 24  # 128 MiB each
CARD = "A100-SXM-40GB"
lms = torch.cuda.lms


@dataclass(frozen=True)
class Spent:
    """Bytes, and seconds."""

    into: float
    back: float
    written: float
    seconds: float

    @staticmethod
    def now() -> Spent:
        """Since the program began."""
        torch.cuda.synchronize()
        link = simcuda.stats()
        written = lms.stats()["lms.disk_write.bytes"]
        seconds = simcuda.device_time(0) / 1e9
        return Spent(link.host_to_device_bytes, link.device_to_host_bytes, written, seconds)

    def since(self, before: Spent) -> Spent:
        """What was spent in between."""
        return Spent(*(b - a for a, b in zip(asdict(before).values(), asdict(self).values())))


def write(path: Path) -> None:
    """A checkpoint of zeros, which takes no room on disk."""
    size = 2 * WIDTH * WIDTH
    header = json.dumps(
        {
            f"{i}.weight": {
                "dtype": "BF16",
                "shape": [WIDTH, WIDTH],
                "data_offsets": [i * size, (i + 1) * size],
            }
            for i in range(LAYERS)
        }
    ).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + LAYERS * size)


def load_by_way_of_the_device(model: nn.Module, path: Path) -> None:
    """A tensor at a time."""
    size = 2 * WIDTH * WIDTH
    start = path.stat().st_size - LAYERS * size
    content = torch.from_file(str(path), size=path.stat().st_size, dtype=torch.uint8)
    for number, layer in enumerate(model.children()):
        begin = start + number * size
        source = content[begin : begin + size].clone().view(torch.bfloat16)
        value = torch.empty_like(layer.weight, device="cuda")
        layer.weight = nn.Parameter(value.copy_(source.view(WIDTH, WIDTH)))


def measure(way: str, folder: Path) -> None:
    """In a process of its own."""
    path = folder / "model.safetensors"
    torch.cuda.set_limit_lms(GIB)
    torch.cuda.set_enabled_lms(True)
    with torch.device("meta"):
        layers = (nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16) for _ in range(LAYERS))
        model = nn.Sequential(*layers)
    x = torch.zeros(64, WIDTH, dtype=torch.bfloat16, device="cuda")
    start = Spent.now()
    with torch.no_grad():
        if way == "load":
            lms.load(model, path)
        else:
            load_by_way_of_the_device(model, path)
        loaded = Spent.now()
        model(x)
    print(json.dumps([asdict(loaded.since(start)), asdict(Spent.now().since(start))]))


def show(way: str, disk: bool, folder: Path) -> None:
    """Measures, and prints a line."""
    below = {"PYTORCH_LMS_HOST_LIMIT": "5G"}
    if disk:
        below = {"PYTORCH_LMS_HOST_LIMIT": "1G", "PYTORCH_LMS_DISK": f"{folder}:8G"}
    found = children.run(__file__, way, str(folder), card=CARD, capacity=None, **below)
    for what, spent in zip(("load", "load and use"), found):
        moved = [f"{spent[name] / GIB:5.2f}" for name in ("into", "back", "written")]
        print(f"{way:7} disk={disk:<2} {what:13}", *moved, f"{spent['seconds']:.3f} s", flush=True)


def main() -> None:
    """Command line."""
    if len(sys.argv) == 3:
        measure(sys.argv[1], Path(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "model.safetensors")
        for disk in (False, True):
            for way in ("device", "load"):
                show(way, disk, Path(folder))


if __name__ == "__main__":
    main()
