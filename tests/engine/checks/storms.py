"""Several threads at the edge of memory, whose limits change all the time, on the host too.

Usage: storms.py MODE ROUNDS

MODE is off or on. An operator that runs out of memory is tried again until it does not. Prints a
line of JSON: {"digests": of each thread's results, "refused": operators that ran out of memory}. At
first there is too little memory, so some are.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

lms = torch.cuda.lms
MIB = 1 << 20
LENGTH = 60_000  # of a tensor: 240 kB
OWN = 12  # tensors of a thread: 2.9 MB
THREADS = 4
# Bytes; 12 MB are needed together.
DEVICE_LIMITS = (4 * MIB, 6 * MIB, 12 * MIB)
HOST_LIMITS = (1 * MIB, 2 * MIB, 4 * MIB)
PATIENCE = 60  # seconds: an operator that is refused for longer is never served


class Storm(threading.Thread):
    """Changes limits and pages everything out, from the first refusal until it is over."""

    def __init__(self) -> None:
        super().__init__()
        self.begins = threading.Event()
        self.is_over = threading.Event()

    def run(self) -> None:
        chance = random.Random(0)
        self.begins.wait()
        while not self.is_over.wait(0.003):
            kind = chance.randrange(5)
            if kind == 0:
                torch.cuda.reclaim_inactive()
            elif kind == 1:
                torch.cuda.empty_cache()
            elif kind == 2:
                lms.set_host_limit(chance.choice(HOST_LIMITS))
            else:
                lms.set_limit_lms(chance.choice(DEVICE_LIMITS))


class Worker:
    """Operators in an order that depends on its number alone."""

    def __init__(self, number: int, storm: Storm) -> None:
        self.random = random.Random(number)
        self.number = number
        self.storm = storm
        self.refused = 0
        self.digest = hashlib.sha256()

    def until_served(self, operator: Callable[[], torch.Tensor]) -> torch.Tensor:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return operator()
            except torch.cuda.OutOfMemoryError:
                self.refused += 1
                self.storm.begins.set()
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.002)  # others may need to get on

    def run(self, rounds: int) -> None:
        own = [
            self.until_served(lambda i=i: torch.full((LENGTH,), float(self.number + i)).cuda())
            for i in range(OWN)
        ]
        for _ in range(rounds):
            one, other = self.random.sample(own, 2)
            operator = self.random.choice(
                (
                    lambda one=one, other=other: one * 0.25 + other,
                    lambda one=one, other=other: torch.cat([one[:1000], other[1000:]]),
                    lambda one=one: one.add_(1.5),
                    lambda one=one: one.cpu().cuda(),
                    lambda one=one: one.flip(0).sin_(),
                )
            )
            own[self.random.randrange(OWN)] = self.until_served(operator)
        for tensor in own:
            self.digest.update(self.until_served(tensor.cpu).numpy().tobytes())


def main() -> None:
    mode, rounds = sys.argv[1], int(sys.argv[2])
    storm = Storm()
    if mode == "on":
        lms.set_limit_lms(min(DEVICE_LIMITS))
        lms.set_host_limit(min(HOST_LIMITS))
        lms.set_enabled_lms(True)
        storm.start()
    workers = [Worker(number, storm) for number in range(THREADS)]
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda worker: worker.run(rounds), workers))
    finally:
        storm.is_over.set()
        storm.begins.set()
    if mode == "on":
        storm.join()
        stats = lms.stats()
        assert stats["pinned_bytes.all.current"] == 0, "a pin was left behind"
    digests = [worker.digest.hexdigest() for worker in workers]
    print(json.dumps({"digests": digests, "refused": sum(w.refused for w in workers)}))


if __name__ == "__main__":
    main()
