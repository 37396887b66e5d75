"""The map of memory is the caching allocator's, whatever PYTORCH_ALLOC_CONF says."""

from __future__ import annotations

import random

import torch
from harness import TestCase, assert_same, lms, numbers, run_tests

MIB = 1 << 20
LIMIT = 160 * MIB
STEPS = 300
COUNT = 64  # tensors at a time


def free_blocks() -> list[int]:
    """Bytes of what the allocator has free, joined where it lies side by side."""
    blocks = [
        block["size"]
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if block["state"] == "inactive"
    ]
    return sorted(blocks)


def assert_same_map() -> None:
    free = free_blocks()
    stats = lms.stats()
    assert stats["lms.free_bytes.all"] == sum(free), (stats["lms.free_bytes.all"], sum(free))
    assert stats["lms.free_bytes.largest"] == max(free, default=0)


class TestConfigurations(TestCase):
    def test_random_tensors(self) -> None:
        lms.set_limit_lms(LIMIT)
        choice = random.Random(0)
        hosts: list[torch.Tensor] = []
        tensors: list[torch.Tensor] = []
        for step in range(STEPS):
            if len(tensors) == COUNT:
                i = choice.randrange(COUNT)
                assert_same(tensors.pop(i), hosts.pop(i))
            size = choice.choice([1000, 200_000, 700_000, 3_000_000, 6_000_000])
            hosts.append(numbers(choice.randint(size // 2, size)) + step)
            tensors.append(numbers(hosts[-1].numel()).cuda().add_(step))
            if step % 10 == 0:
                torch.cuda.synchronize()
                assert_same_map()
        for tensor, host in zip(tensors, hosts, strict=True):
            assert_same(tensor, host)
        lms.set_limit_lms(0)


if __name__ == "__main__":
    torch.cuda.set_enabled_lms(True)
    run_tests()
