"""A thread that waits for the device holds no mutex that another thread needs.

What is queued on a device may wait for what another thread has yet to launch, as the collectives of
two ranks in one process do. Here it is a stream that stands still until the other thread says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
from collections.abc import Callable, Iterator

import simcuda
import torch
from harness import TestCase, Worker, assert_same, lms, numbers, paged_out, run_tests

MIB = 1 << 20
SIDE, OTHER = torch.cuda.Stream(), torch.cuda.Stream()


@contextlib.contextmanager
def standing_still(stream: torch.cuda.Stream | None = None) -> Iterator[threading.Event]:
    """The stream, by default the current one, stands still until the event is set."""
    go = threading.Event()

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def wait(_data: object) -> None:
        go.wait()

    handle = (stream or torch.cuda.current_stream()).cuda_stream
    assert ctypes.CDLL(None).cudaLaunchHostFunc(ctypes.c_void_p(handle), wait, None) == 0
    try:
        yield go
    finally:
        go.set()
        torch.cuda.synchronize()  # `wait` must outlive its call


def while_it_waits(
    call: Callable[[], object],
    other: Callable[[], object] = lambda: None,
    prepare: Callable[[], object] = lambda: None,
    stream: torch.cuda.Stream | None = None,
    function: str = "cudaEventSynchronize",
) -> None:
    """Does the other thing while a thread waits for the device in the call, by that function."""
    with standing_still(stream) as go:
        prepare()
        before = simcuda.calls().get(function, 0)
        thread = Worker(call)
        thread.start()
        while simcuda.calls().get(function, 0) == before:
            assert thread.is_alive(), f"the call did not wait for the device: {thread.error}"
        other()
        assert thread.is_alive(), "the device stands still, yet the call has ended"
        go.set()
        thread.finish()


class TestWaiting(TestCase):
    def test_hold(self) -> None:
        host, other = numbers(1 << 18), paged_out(numbers(64))
        tensor = paged_out(host)
        storage = tensor.untyped_storage()
        while_it_waits(
            lambda: torch.ops.lms.hold(storage),
            lambda: lms.is_resident(other),
        )
        assert_same(tensor, host)

    def test_two_threads_hold(self) -> None:
        """The second one waits for the bytes too."""
        host = numbers(1 << 18)
        tensor = paged_out(host)
        storage = tensor.untyped_storage()
        before = simcuda.calls().get("cudaEventSynchronize", 0)
        second = threading.Thread(target=lambda: torch.ops.lms.hold(storage), daemon=True)

        def hold_too() -> None:
            second.start()
            while simcuda.calls().get("cudaEventSynchronize", 0) < before + 2:
                assert second.is_alive(), "the bytes are not here, yet the call has ended"

        while_it_waits(lambda: torch.ops.lms.hold(storage), hold_too)
        second.join()
        assert_same(tensor, host)

    def test_release(self) -> None:
        host, other = numbers(1 << 18), paged_out(numbers(64))
        tensor = paged_out(host)
        storage = tensor.untyped_storage()
        while_it_waits(
            lambda: torch.ops.lms.release(storage),
            lambda: lms.is_resident(other),
        )
        assert_same(tensor, host)

    def test_emptying_the_cache(self) -> None:
        host, other = numbers(1 << 18), paged_out(numbers(64))
        tensor = host.cuda()
        while_it_waits(
            torch.cuda.empty_cache,
            lambda: lms.is_resident(other),
            prepare=torch.cuda.reclaim_inactive,
        )
        assert_same(tensor, host)

    def test_host_memory(self) -> None:
        """It is for all devices: a wait for the copies of one leaves the others alone."""
        lms.set_host_limit(8 * MIB)
        try:
            host = numbers(6 * MIB // 4)
            tensor = paged_out(host)
            with torch.cuda.device(1):
                other = numbers(64).cuda()
                other += 1
            while_it_waits(
                torch.cuda.reclaim_inactive,
                lambda: lms.stats(1),
                # It comes back, and needs other memory to leave again: its copy's is being read.
                prepare=lambda: tensor.add_(1),
            )
            assert_same(tensor, host + 1)
        finally:
            lms.set_host_limit(0)

    def test_what_is_arriving_when_a_capture_begins(self) -> None:
        """As `torch.cuda.graph` waits for the device first, this is with what it is made of."""
        x = paged_out(numbers(MIB))
        graph = torch.cuda.CUDAGraph()
        products: list[torch.Tensor] = []

        def capture() -> None:
            with torch.cuda.stream(SIDE):
                graph.capture_begin()
                products.append(x * 2)
                x.record_stream(OTHER)
                graph.capture_end()

        pins = contextlib.ExitStack()
        while_it_waits(capture, prepare=lambda: pins.enter_context(lms.pin(x)))
        pins.close()
        graph.replay()
        assert_same(products[0], numbers(MIB) * 2)

    def test_storages_that_die_while_a_graph_uses_them(self) -> None:
        """It runs on a stream that LMS does not know: their memory is not free before its end."""
        x, other = numbers(MIB).cuda(), paged_out(numbers(MIB) + 7)
        graph = torch.cuda.CUDAGraph()
        with lms.pin(x), torch.cuda.graph(graph, stream=SIDE):
            product = x * 2

        def replay() -> None:
            nonlocal x
            with torch.cuda.stream(OTHER):
                graph.replay()
            del x
            gc.collect()

        def ask_for_memory() -> None:
            other.add_(1)

        while_it_waits(
            ask_for_memory, prepare=replay, stream=OTHER, function="cudaDeviceSynchronize"
        )
        assert_same(product, numbers(MIB) * 2)
        assert_same(other, numbers(MIB) + 8)


if __name__ == "__main__":
    torch.cuda.set_enabled_lms(True)
    run_tests()
