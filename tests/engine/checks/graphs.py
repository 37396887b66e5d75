"""CUDA graphs: what a capture may touch, what goes on beside it, and replays afterwards.

A capture that fails leaves PyTorch's allocator and its generator of random numbers in it, so a
check that fails takes later ones with it.
"""

import contextlib
import gc
from collections.abc import Iterator

import torch
from harness import (
    TestCase,
    assert_same,
    in_thread,
    is_held,
    lms,
    numbers,
    paged_out,
    raises,
    run_tests,
)

MIB = 1 << 20
COUNT = MIB  # elements of 4 bytes
SIDE, OTHER = torch.cuda.Stream(), torch.cuda.Stream()
dropout = torch.nn.functional.dropout


def managed() -> int:
    return lms.stats()["lms.managed.all.current"]


@contextlib.contextmanager
def short_of_memory() -> Iterator[list[torch.Tensor]]:
    """More tensors than the limit leaves room for."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_limit_lms(64 * MIB)
    try:
        yield [(numbers(COUNT) + i).cuda() for i in range(24)]
    finally:
        torch.cuda.set_limit_lms(0)


def expect_random_numbers(pinned: bool) -> None:
    """Replays draw what the program would have drawn, whatever leaves in between."""
    x = torch.ones(10_000, device="cuda")
    torch.cuda.manual_seed(5)
    expected = [(dropout(x), torch.randn(100, device="cuda"), torch.rand_like(x)) for _ in range(4)]
    torch.cuda.manual_seed(5)
    graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
    drawn = []
    with lms.pin(x) if pinned else contextlib.nullcontext():
        for graph, stream in zip(graphs, (SIDE, OTHER), strict=True):
            with torch.cuda.graph(graph, stream=stream):
                drawn.append((dropout(x), torch.randn(100, device="cuda"), torch.rand_like(x)))
    for i, draws in enumerate(expected):
        torch.cuda.reclaim_inactive()
        graphs[i % 2].replay()
        for draw, other in zip(drawn[i % 2], draws, strict=True):
            assert_same(draw, other)


class TestGraphs(TestCase):
    def test_random_numbers(self) -> None:
        expect_random_numbers(pinned=True)

    def test_random_numbers_without_pins(self) -> None:
        expect_random_numbers(pinned=False)

    def test_random_numbers_short_of_memory(self) -> None:
        with short_of_memory() as tensors:
            expect_random_numbers(pinned=True)
            for i, tensor in enumerate(tensors):
                assert_same(tensor, numbers(COUNT) + i)

    def test_random_numbers_of_a_generator_of_the_program(self) -> None:
        generator = torch.Generator("cuda").manual_seed(9)
        expected = [torch.rand(1000, device="cuda", generator=generator) for _ in range(3)]
        generator.manual_seed(9)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            drawn = torch.rand(1000, device="cuda", generator=generator)
        for draw in expected:
            torch.cuda.reclaim_inactive()
            with torch.cuda.stream(OTHER):
                graph.replay()
            OTHER.synchronize()
            assert_same(drawn, draw)

    def test_what_a_capture_makes_is_not_managed(self) -> None:
        x = numbers(COUNT).cuda()
        graph = torch.cuda.CUDAGraph()
        with lms.pin(x):
            pass
        before = managed()
        with lms.pin(x), torch.cuda.graph(graph):
            for _ in range(3):
                dropped = x * 2
                kept = dropped + 1
                del dropped
        assert managed() == before
        torch.cuda.reclaim_inactive()
        assert lms.is_resident(kept)
        graph.replay()
        assert_same(kept, numbers(COUNT) * 2 + 1)

    def test_what_a_graph_uses_stays(self) -> None:
        large, small = numbers(COUNT), numbers(7)
        with torch.cuda.stream(SIDE):  # made and captured on the same stream
            one, two = large.cuda(), small.cuda()
        SIDE.synchronize()
        graph = torch.cuda.CUDAGraph()
        with lms.pin(one, two), torch.cuda.graph(graph, stream=SIDE):
            product = one * 2
            total = two.sum() + product[0]
        for i in range(3):
            one.copy_(large + i)  # on another stream than before
            two.copy_(small + i)
            torch.cuda.reclaim_inactive()
            graph.replay()
            assert_same(product, (large + i) * 2)
            assert_same(total, (small + i).sum() + (large[0] + i) * 2)
        assert is_held(one) and is_held(two)

    def test_a_fork(self) -> None:
        x, y = numbers(COUNT).cuda(), (numbers(COUNT) + 1).cuda()
        with torch.cuda.stream(OTHER):
            own = numbers(COUNT).cuda()
            OTHER.synchronize()
        graph = torch.cuda.CUDAGraph()
        with lms.pin(x, y, own), torch.cuda.graph(graph, stream=SIDE):
            product = x * 2
            OTHER.wait_stream(SIDE)
            with torch.cuda.stream(OTHER):
                total = product + y + own
                x.record_stream(OTHER)
            SIDE.wait_stream(OTHER)
            result = total * 2
        torch.cuda.reclaim_inactive()
        graph.replay()
        expected = numbers(COUNT) * 4 + 1
        assert_same(total, expected)
        assert_same(result, expected * 2)
        del x
        gc.collect()

    def test_a_thread_that_pages_beside_a_capture(self) -> None:
        """What it pages out was used on the stream that is being captured."""
        with torch.cuda.stream(SIDE):
            used = [(numbers(COUNT) + i).cuda() for i in range(4)]
            x = numbers(COUNT).cuda()
        OTHER.wait_stream(SIDE)
        with torch.cuda.stream(OTHER):
            sums = [tensor.sum() for tensor in used]
        del sums
        torch.cuda.synchronize()

        def work() -> None:
            before = lms.stats()["reclaimed"]
            for _ in range(3):
                for tensor in used:
                    tensor.add_(1)
                torch.cuda.reclaim_inactive()
            assert lms.stats()["reclaimed"] >= before + 4

        graph = torch.cuda.CUDAGraph()
        with lms.pin(x), torch.cuda.graph(graph, stream=SIDE):
            product = x * 2
            OTHER.wait_stream(SIDE)
            in_thread(work)
            with torch.cuda.stream(OTHER):
                total = product + x
            SIDE.wait_stream(OTHER)
        for i, tensor in enumerate(used):
            assert_same(tensor, numbers(COUNT) + i + 3)
        graph.replay()
        assert_same(total, numbers(COUNT) * 3)

    def test_storages_that_die_in_a_capture(self) -> None:
        """They were used on the stream that is being captured, and their memory is used again."""
        x = numbers(COUNT).cuda()
        dying = [(numbers(COUNT) + i).cuda() for i in range(4)]
        OTHER.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(OTHER):
            sums = [tensor.sum() for tensor in dying]
        del sums
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with lms.pin(x), torch.cuda.graph(graph, stream=OTHER):
            product = x * 2
            dying.clear()
        again = [(numbers(COUNT) + i).cuda() for i in range(4)]
        torch.cuda.reclaim_inactive()
        graph.replay()
        for i, tensor in enumerate(again):
            assert_same(tensor, numbers(COUNT) + i)
        assert_same(product, numbers(COUNT) * 2)

    def test_what_is_not_here_cannot_be_captured(self) -> None:
        """Neither for an operator nor for its address; and the capture goes on."""
        x, ones = paged_out(numbers(COUNT)), torch.ones(COUNT, device="cuda")
        words = ("A CUDA graph capture touches", "torch.cuda.lms.pin")
        graph = torch.cuda.CUDAGraph()
        with lms.pin(ones), torch.cuda.graph(graph, stream=SIDE):
            product = ones * 2
            raises(RuntimeError, lambda: x * 2, *words)
            raises(RuntimeError, lambda: torch.ops.lms.hold(x.untyped_storage()), *words)
            product += 1
        ones.fill_(5)
        graph.replay()
        assert_same(product, torch.full((COUNT,), 11.0))
        assert not is_held(x)
        assert_same(x, numbers(COUNT))

    def test_a_capture_while_lms_is_off(self) -> None:
        """Memory that is freed in it does not concern LMS, which still follows the allocator."""
        kept = numbers(COUNT).cuda()
        torch.cuda.set_enabled_lms(False)
        try:
            stream = torch.cuda.Stream()  # LMS has never met it
            with torch.cuda.stream(stream):
                x = numbers(COUNT).cuda()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                product = (x * 2 * 3 + 1) * 2
        finally:
            torch.cuda.set_enabled_lms(True)
        torch.cuda.reclaim_inactive()
        graph.replay()
        assert_same(product, (numbers(COUNT) * 6 + 1) * 2)
        assert_same(kept, numbers(COUNT))

    def test_a_pool_that_began_while_lms_was_off(self) -> None:
        """Its end must not hide what begins later."""
        x = numbers(COUNT).cuda()
        torch.cuda.set_enabled_lms(False)
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            torch.cuda.set_enabled_lms(True)
        graph = torch.cuda.CUDAGraph()
        with lms.pin(x), torch.cuda.graph(graph, stream=SIDE):
            product = x * 2
        assert is_held(x)
        graph.replay()
        assert_same(product, numbers(COUNT) * 2)

    def test_small_storages_of_a_graph(self) -> None:
        """They need no record as long as they are small, but must never leave afterwards."""
        torch.cuda.set_size_lms(MIB)
        try:
            with torch.cuda.stream(SIDE):
                small = numbers(7).cuda()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=SIDE):
                product = small * 2
        finally:
            torch.cuda.set_size_lms(1)
        small.copy_(numbers(7) + 1)  # on another stream
        assert is_held(small)
        graph.replay()
        assert_same(product, (numbers(7) + 1) * 2)

    def test_a_thread_that_waits_beside_a_capture(self) -> None:
        """For bytes that it holds; and it gives host memory back."""
        x, ones = paged_out(numbers(COUNT)), torch.ones(COUNT, device="cuda")

        def work() -> None:
            torch.ops.lms.hold(x.untyped_storage())
            before = lms.stats()["lms.host_bytes.reserved"]
            lms.set_host_limit(1)
            assert lms.stats()["lms.host_bytes.reserved"] < before
            lms.set_host_limit(0)

        graph = torch.cuda.CUDAGraph()
        with lms.pin(ones), torch.cuda.graph(graph, stream=SIDE):
            product = ones * 2
            in_thread(work)
        graph.replay()
        assert_same(product, torch.full((COUNT,), 2.0))
        assert_same(x, numbers(COUNT))

    def test_a_capture_that_finds_no_room(self) -> None:
        """What is pinned when memory has become one segment keeps all of it."""
        with short_of_memory() as tensors, lms.pin(tensors[20]):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=SIDE):
                raises(
                    torch.cuda.OutOfMemoryError,
                    lambda: torch.empty(16 * MIB, dtype=torch.uint8, device="cuda"),
                    "A CUDA graph capture",
                    "capture before memory is short",
                )

    def test_paging_after_captures(self) -> None:
        with short_of_memory() as tensors:
            before = lms.stats()["reclaimed"]
            for tensor in tensors:
                tensor.add_(1)
            for i, tensor in enumerate(tensors):
                assert_same(tensor, numbers(COUNT) + i + 1)
            assert lms.stats()["reclaimed"] > before
            assert not is_held(tensors[0])


run_tests()
