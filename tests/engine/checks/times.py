"""Statistics of time, in virtual time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from harness import TestCase, lms, page_out, run_tests
from simcuda import cards

CARD = cards.card("A100-SXM-40GB")
BYTES = 64 << 20
LAYERS = 10
COUNT = BYTES // 4  # elements


def grown(work: Callable[[], object]) -> dict[str, int]:
    """How much the statistics grow by until all work is done."""
    torch.cuda.synchronize()
    before = lms.stats()
    work()
    torch.cuda.synchronize()
    return {name: value - before[name] for name, value in lms.stats().items()}


def copy_us(direction: str) -> float:
    """What the card takes for one copy of BYTES, which runs alone."""
    return (CARD["copy_ns"] + 1e9 * BYTES / CARD["page_locked"][direction]) / 1e3


def assert_close(actual: float, expected: float, what: str) -> None:
    """Within 1 % and 10 µs, which calls of the runtime take in between."""
    assert abs(actual - expected) <= 0.01 * expected + 10, f"{what}: {actual}, expected {expected}"


def layers(count: int) -> list[torch.Tensor]:
    return [torch.zeros(COUNT, device="cuda") for _ in range(count)]


def steady_iteration(matrices: float) -> dict[str, int]:
    """Of layers with memory for half of their weights and so many products, half as large."""
    weights = layers(LAYERS)
    matrix = torch.zeros(4096, 4096, device="cuda", dtype=torch.float16)
    lms.set_limit_lms(LAYERS // 2 * BYTES + int(matrices * matrix.nbytes))

    def iteration() -> None:
        for weight in weights:
            weight.add_(1)
            for _ in range(12):  # longer than a copy each way
                product = matrix @ matrix
            del product

    try:
        for _ in range(8):
            iteration()
        return grown(iteration)
    finally:
        lms.set_limit_lms(0)


class TestTimes(TestCase):
    def test_copies_and_what_waits_for_them(self) -> None:
        tensor = torch.zeros(COUNT, device="cuda")
        page_out(tensor)  # the first copy waits for page-locked memory
        tensor.add_(1)
        leaving = grown(lambda: page_out(tensor))
        assert_close(leaving["lms.page_out.us"], copy_us("d2h"), "out")
        coming = grown(tensor.sum)
        assert coming["lms.page_out.us"] == 0
        assert_close(coming["lms.page_in.us"], copy_us("h2d"), "in")
        assert coming["lms.stall.demand.times"] == 1
        assert_close(coming["lms.stall.demand.us"], copy_us("h2d"), "wait")
        assert coming["lms.stall.ahead.us"] == coming["lms.stall.memory.us"] == 0

    def test_memory_that_is_being_paged_out(self) -> None:
        tensors = [torch.zeros(COUNT, device="cuda") for _ in range(6)]
        torch.cuda.synchronize()
        lms.set_limit_lms(6 * BYTES)

        def more() -> None:
            tensors.extend(torch.zeros(COUNT, device="cuda") for _ in range(2))

        try:
            waits = grown(more)
        finally:
            lms.set_limit_lms(0)
        assert waits["lms.page_out.copies"] >= 2
        assert waits["lms.stall.memory.times"] >= 1
        assert 0 < waits["lms.stall.memory.us"] <= waits["lms.page_out.us"] + 10
        assert waits["lms.stall.demand.us"] == 0

    def test_prefetching(self) -> None:
        steady = steady_iteration(4)
        assert steady["lms.page_in.copies"] > 0
        assert steady["lms.page_in.ahead.copies"] == steady["lms.page_in.copies"]
        assert steady["lms.prefetch.hits"] == steady["lms.page_in.copies"]
        assert steady["lms.prefetch.late"] == steady["lms.prefetch.wasted"] == 0
        assert steady["lms.stall.demand.times"] == 0
        stalls = sum(steady[f"lms.stall.{cause}.us"] for cause in ("demand", "ahead", "memory"))
        assert stalls < 0.01 * (steady["lms.page_in.us"] + steady["lms.page_out.us"])

    def test_products_that_are_about_to_die_stay(self) -> None:
        for matrices in (3, 3.5, 4.5, 5, 5.5):
            copies = steady_iteration(matrices)["lms.page_out.copies"]
            assert copies <= LAYERS, f"room for {matrices} products: {copies} page-outs"

    def test_small_and_large_storages_that_take_turns(self) -> None:
        """Memory is not made one segment in each iteration: all weights would leave for that."""
        torch.cuda.empty_cache()
        lms.set_limit_lms(128 << 20)
        weights = [torch.zeros(1 << 18, device="cuda") for _ in range(24)]  # 1 MiB each

        def iteration() -> None:
            for count, size in ((30, 4 << 20), (100, 1 << 20)):  # bytes
                made = [torch.zeros(size // 4, device="cuda") for _ in range(count)]
                for weight in weights:
                    weight.add_(1)
                del made

        try:
            for _ in range(4):
                iteration()
            copies = grown(iteration)["lms.page_out.copies"]
            assert copies <= len(weights) / 2, f"{copies} page-outs"
        finally:
            lms.set_limit_lms(0)

    def test_prefetched_in_vain(self) -> None:
        weights = layers(LAYERS)
        lms.set_limit_lms(LAYERS // 2 * BYTES)

        def forget() -> None:  # in the middle of an iteration: what was fetched dies
            for weight in weights[: LAYERS // 2]:
                weight.add_(1)
            weights.clear()

        try:
            for _ in range(8):
                for weight in weights:
                    weight.add_(1)
            assert grown(forget)["lms.prefetch.wasted"] > 0
        finally:
            lms.set_limit_lms(0)

    def test_free_memory(self) -> None:
        torch.cuda.empty_cache()
        tensors = layers(4)
        assert lms.stats()["lms.free_bytes.all"] == 0
        del tensors[2], tensors[0]  # segments of their own
        stats = lms.stats()
        assert stats["lms.free_bytes.all"] == 2 * BYTES
        assert stats["lms.free_bytes.largest"] == BYTES


if __name__ == "__main__":
    torch.cuda.set_enabled_lms(True)
    run_tests()
