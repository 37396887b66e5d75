"""Trains on a card of which somebody else takes a tenth in the middle.

Usage: crowded.py off|MODE. Prints how it ended as JSON. Modes, all with LMS on:

- "pieces": the default limit; the other takes what is free, piece by piece, until it has a tenth;
- "default", "limit": the program has emptied the cache, and the other takes a tenth at once; with
  the default limit, and with one that is all of the card.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys

import simcuda
import torch
from harness import refusals
from torch import nn

RUNTIME = ctypes.CDLL(None)  # CUDA's functions, simulated
MIB = 1 << 20
STEPS = 12
TAKEN_AFTER = 4
SETTLED_AFTER = 8
LAYERS = 12  # 4 MiB each, and as much for gradients and for momentum
PIECE = MIB // 2
OPERATORS = 2200  # between two steps: LMS looks at the card now and then

refused = refusals()


class Other:
    """Memory of the card that does not come from the caching allocator."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.taken = 0

    def take(self, bytes: int) -> bool:
        address = ctypes.c_void_p()
        error = RUNTIME.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(bytes))
        RUNTIME.cudaGetLastError()
        self.taken += 0 if error else bytes
        return error == 0

    def take_pieces(self) -> None:
        while self.taken < self.wanted and self.take(PIECE):
            pass


def run_small_operators() -> None:
    small = torch.zeros(8, device="cuda")
    for _ in range(OPERATORS):
        small.add_(1)


def train(mode: str) -> dict[str, object]:
    torch.manual_seed(0)
    card = torch.cuda.mem_get_info()[1]
    other = Other(card // 10)
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(LAYERS))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batch = torch.randn(16, 1024).cuda()
    settled: dict[str, int] = {}
    failed = 0
    for step in range(STEPS):
        if step == TAKEN_AFTER and mode in ("default", "limit"):
            torch.cuda.reclaim_inactive()
            torch.cuda.empty_cache()
            assert other.take(other.wanted), "the card was not given back"
        if step >= TAKEN_AFTER and mode == "pieces":
            other.take_pieces()
        if step == SETTLED_AFTER:
            settled = simcuda.calls()
            failed = len(refused)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        run_small_operators()
    calls = simcuda.calls()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return {
        "digest": digest.hexdigest(),
        "card": card,
        "taken": other.taken,
        "limit": torch.cuda.get_limit_lms() if mode != "off" else 0,
        "reserved": torch.cuda.memory_reserved(),
        "free": torch.cuda.mem_get_info()[0],
        "failures": len(refused),
        "late_failures": len(refused) - failed,
        "errors": torch.cuda.memory_stats()["num_ooms"],
        "late_allocations": calls["cudaMalloc"] - settled["cudaMalloc"],
    }


if __name__ == "__main__":
    mode = sys.argv[1]
    if mode != "off":
        torch.cuda.set_limit_lms(1 << 50 if mode == "limit" else 0)
        torch.cuda.set_enabled_lms(True)
    print(json.dumps(train(mode)))
