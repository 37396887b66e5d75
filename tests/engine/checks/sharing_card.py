"""A program on a card that others use too: it does what it is asked, see Program.

Usage: sharing_card.py on|off. A request is the name of a method, with its arguments if it has any.
"""

from __future__ import annotations

import hashlib
import sys
import time
from typing import Any

import torch
from support import serve

MIB = 1 << 20
LARGE = 10 * MIB  # bytes of a tensor, which has a segment of its own


class Program:
    """Some tensors, each of them used in turn."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.product = torch.zeros(())

    def make(self, count: int) -> None:
        for number in range(count):
            self.tensors.append(torch.arange(LARGE // 4, device="cuda", dtype=torch.float32))
            self.tensors[-1].add_(number)

    def touch(self, times: int = 1) -> float:
        """Changes each; returns how long that took, in seconds."""
        begin = time.monotonic()
        for _ in range(times):
            for tensor in self.tensors:
                tensor.mul_(1.0009765625).add_(1)
        torch.cuda.synchronize()
        return time.monotonic() - begin

    def touch_for(self, seconds: float) -> int:
        """Changes each again and again; returns how often."""
        end, times = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            self.touch()
            times += 1
        return times

    def hold(self, mebibytes: int) -> None:
        self.tensors.append(torch.ones(mebibytes * MIB, dtype=torch.uint8, device="cuda"))

    def multiply(self) -> None:
        factor = torch.ones(64, 64, device="cuda", requires_grad=True)
        self.product = (factor @ factor).sum()

    def go_back(self) -> None:
        """Multiplies on a thread of its own."""
        self.product.backward()

    def drop(self) -> None:
        self.tensors.clear()
        torch.cuda.empty_cache()

    def look_no_more(self) -> None:
        """It does not look at others any more, as when it ends."""
        torch.cuda.init()
        torch.ops.lms.stop_sharing()

    def digest(self) -> str:
        digest = hashlib.sha256()
        for tensor in self.tensors:
            digest.update(tensor.cpu().numpy().tobytes())
        return digest.hexdigest()

    def state(self) -> dict[str, float]:
        """What it has of the card, as parts of it; bytes that it has paged out."""
        card = torch.cuda.mem_get_info()[1]
        stats = torch.cuda.lms.stats()
        return {
            "reserved": torch.cuda.memory_reserved() / card,
            "limit": torch.cuda.get_limit_lms() / card,
            "paged_out": stats["lms.page_out.bytes"] / card,
            "errors": torch.cuda.memory_stats()["num_ooms"],
        }


def main() -> None:
    torch.cuda.set_enabled_lms(sys.argv[1] == "on")
    program = Program()

    def handle(request: str | list[Any]) -> Any:
        name, *arguments = [request] if isinstance(request, str) else request
        return getattr(program, name)(*arguments)

    serve.answer(handle)


main()
