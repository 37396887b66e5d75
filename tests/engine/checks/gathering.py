"""Whatever fits in the limit with 1/64 to spare runs, however its arguments lie.

Usage: gathering.py [TEST...], in each mode of LMS.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import torch
from harness import TestCase, assert_same, lms, numbers, run_tests
from torch import nn

MIB = 1 << 20
SPARE = 64  # of the limit: what an operator has to leave
SMALLEST = 128 * MIB  # limit: below it, 1/64 is less than the allocator takes at once
CASES = 6  # of the random test: one for each operator
# The allocator takes the memory of an expandable segment in pieces.
UNIT = 20 * MIB if "expandable_segments" in os.environ.get("PYTORCH_ALLOC_CONF", "") else MIB

Operator = Callable[[list[torch.Tensor]], torch.Tensor]


def cat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def stacked(tensors: list[torch.Tensor]) -> torch.Tensor:
    count = min(tensor.numel() for tensor in tensors)
    return torch.stack([tensor.flatten()[:count] for tensor in tensors], dim=1)


def repeated(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The result is larger than all of the arguments."""
    one, *others = tensors
    return torch.cat([one.flatten()] * 3 + [other.flatten() for other in others])


def expanded(tensors: list[torch.Tensor]) -> torch.Tensor:
    largest = max(tensors, key=torch.numel).flatten()
    return largest.expand(8, largest.numel()).contiguous()


def dropped(tensors: list[torch.Tensor]) -> torch.Tensor:
    """An operator that draws random numbers."""
    largest = max(tensors, key=torch.numel)
    torch.manual_seed(0)
    return nn.functional.dropout(largest, 0.5)


def in_place(tensors: list[torch.Tensor]) -> torch.Tensor:
    """An operator that writes to an argument, and needs memory for it."""
    largest = max(tensors, key=torch.numel).flatten()
    result: torch.Tensor = largest.cumsum(0)
    return result.index_add_(0, torch.arange(largest.numel(), device="cuda"), largest)


OPERATORS: list[Operator] = [cat, stacked, repeated, expanded, dropped, in_place]


def bytes_needed(operator: Operator, hosts: list[torch.Tensor]) -> int:
    """The most that the allocator has in use, with nothing but the arguments to begin with."""
    torch.cuda.set_enabled_lms(False)
    tensors = [host.cuda() for host in hosts]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    operator(tensors)
    needed: int = torch.cuda.max_memory_allocated()
    del tensors
    torch.cuda.empty_cache()
    torch.cuda.set_enabled_lms(True)
    return needed


def scattered(hosts: list[torch.Tensor], others: int, seed: int) -> list[torch.Tensor]:
    """The tensors on the device, where others lie between them."""
    order = list(range(len(hosts) + others))
    random.Random(seed).shuffle(order)
    made = {}
    rest = []
    for i in order:
        if i < len(hosts):
            made[i] = hosts[i].cuda()
        else:
            rest.append(torch.empty(hosts[i % len(hosts)].shape, device="cuda").fill_(i))
    for i in order:  # those that are in use lie where they came to lie
        if i < len(hosts):
            made[i] += 0
    between.extend(rest)
    return [made[i] for i in range(len(hosts))]


between: list[torch.Tensor] = []


def expect_to_run(
    operator: Operator, hosts: list[torch.Tensor], others: int, seed: int, limit: int | None = None
) -> None:
    expected = operator([host.cuda() for host in hosts]).cpu()
    needed = bytes_needed(operator, hosts)
    lms.set_limit_lms(limit or max(SMALLEST, needed * SPARE // (SPARE - 1) + UNIT))
    try:
        tensors = scattered(hosts, others, seed)
        assert_same(operator(tensors), expected)
        for tensor, host in zip(tensors, hosts, strict=True):
            assert_same(tensor, host)
        assert lms.stats()["pinned_bytes.all.current"] == 0
    finally:
        between.clear()
        lms.set_limit_lms(0)


def minimise() -> torch.Tensor:
    """The parameters after two steps of L-BFGS, which joins all of them into one tensor."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(16)]).cuda()  # 16 MiB
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, history_size=2)
    x = torch.linspace(-1, 1, 8 * 512).reshape(8, 512).cuda()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    return nn.utils.parameters_to_vector(model.parameters()).detach().cpu()


class TestGathering(TestCase):
    def test_weights_are_joined(self) -> None:
        for limit in (120, 136, 160):
            hosts = [numbers(1024, 1024) for _ in range(12)]
            expect_to_run(cat, hosts, 36, limit, limit * MIB)

    def test_lbfgs(self) -> None:
        torch.cuda.set_enabled_lms(False)
        expected = minimise()
        torch.cuda.set_enabled_lms(True)
        lms.set_limit_lms(150 * MIB)
        between.extend(numbers(MIB).cuda() for _ in range(30))
        try:
            assert_same(minimise(), expected)
        finally:
            between.clear()
            lms.set_limit_lms(0)

    def test_an_output_that_grows(self) -> None:
        """It has its new shape when its memory is refused: that must not be taken for enough."""
        hosts = [numbers(MIB) for _ in range(16)]
        lms.set_limit_lms(SMALLEST)
        try:
            tensors = scattered(hosts, 30, seed=0)
            out = torch.empty(1, device="cuda")
            try:
                torch.cat(tensors[:14], out=out)
            except torch.cuda.OutOfMemoryError:
                out = torch.cat(tensors[:14])  # nothing else is lost
            assert out.untyped_storage().nbytes() >= out.numel() * out.itemsize
            assert_same(out, torch.cat(hosts[:14]))
        finally:
            between.clear()
            lms.set_limit_lms(0)

    def test_random_operators(self) -> None:
        for seed in range(CASES):
            choice = random.Random(seed)
            operator = OPERATORS[seed % len(OPERATORS)]
            sizes = [choice.randint(300_000, 3_000_000) for _ in range(choice.randint(3, 20))]
            if operator in (expanded, dropped, in_place):
                sizes[0] = choice.randint(12, 20) * MIB  # floats
            hosts = [numbers(size) for size in sizes]
            try:
                expect_to_run(operator, hosts, choice.randint(5, 40), seed)
            except Exception as error:
                raise AssertionError(f"seed {seed}, {operator.__name__}, {sizes}") from error


if __name__ == "__main__":
    torch.cuda.set_enabled_lms(True)
    run_tests()
