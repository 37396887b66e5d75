"""Several threads compute on shared tensors and their own while LMS moves them.

Usage: races.py ENGINE MODE THREADS ROUNDS

ENGINE is a library to use in place of the installed engine, such as one built with a sanitizer, or
"installed"; MODE is off, on or chaos. Prints a digest of all results, which must not depend on any
of these.
"""

from __future__ import annotations

import hashlib
import random
import sys
import threading

import torch
from torch.cuda import _lms_library

lms = torch.cuda.lms
MIB = 1 << 20
LIMIT = 8 * MIB
LENGTH = 60_000  # of a tensor: 240 kB
SHARED = 24  # tensors: 5.8 MB, and as much again for what the threads own


class Worker(threading.Thread):
    """Operators in an order that depends on its number alone."""

    def __init__(self, number: int, rounds: int, shared: list[torch.Tensor]) -> None:
        super().__init__()
        self.number = number
        self.rounds = rounds
        self.shared = shared
        self.digest = hashlib.sha256()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            # Half of the threads share the default stream, the others have their own.
            stream = torch.cuda.Stream() if self.number % 2 else torch.cuda.default_stream()
            with torch.cuda.stream(stream):
                self.compute(random.Random(self.number))
        except BaseException as error:
            self.error = error

    def compute(self, chance: random.Random) -> None:
        own = [torch.full((LENGTH,), float(i + self.number), device="cuda") for i in range(6)]
        for round_ in range(self.rounds):
            one, other = chance.sample(own, 2)
            shared = chance.choice(self.shared)
            what = chance.randrange(8)
            if what == 0:
                one.add_(shared, alpha=0.5)
            elif what == 1:
                own[chance.randrange(6)] = one * 0.25 + shared  # frees the old one
            elif what == 2:
                self.note(torch.cat([one[:100], shared[-100:], other[:100]]))
            elif what == 3:
                self.note(self.gradient(one, shared))
            elif what == 4:
                torch._foreach_mul_([one, other], 0.5)
            elif what == 5:
                own[chance.randrange(6)] = other.cpu().cuda()
            elif what == 6:
                view = shared[10:2000].double().sum()
                del shared
                self.note(view)
            elif round_ % 5 == 0:
                torch.cuda.reclaim_inactive()
            else:
                with lms.pin(one, shared):
                    self.note(one[:50] + shared[:50])
        for tensor in own:
            self.note(tensor)

    def gradient(self, one: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
        x = one.detach().clone().requires_grad_()
        (x * x * 0.125 + x * shared).sum().backward()
        return x.grad

    def note(self, tensor: torch.Tensor) -> None:
        self.digest.update(tensor.detach().cpu().numpy().tobytes())


def main(engine: str, mode: str, threads: int, rounds: int) -> str:
    if engine != "installed":
        _lms_library.PATH = engine
    if mode != "off":
        torch.cuda.set_limit_lms(LIMIT)
        lms.set_enabled_lms(True)
        torch.ops.lms.set_chaos(mode == "chaos")
    shared = [torch.full((LENGTH,), 1.0 / (i + 1), device="cuda") for i in range(SHARED)]
    torch.cuda.synchronize()
    workers = [Worker(number, rounds, shared) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        if worker.error:
            raise worker.error
    if mode != "off":
        assert lms.stats()["reclaimed"] > rounds, "nothing moved: nothing was tested"
        assert lms.stats()["pinned.all.current"] == 0
        assert torch.cuda.memory_reserved() <= LIMIT
    return " ".join(worker.digest.hexdigest() for worker in workers)


if __name__ == "__main__":
    engine, mode, threads, rounds = sys.argv[1:]
    digest = main(engine, mode, int(threads), int(rounds))
    print(hashlib.sha256(digest.encode()).hexdigest())
