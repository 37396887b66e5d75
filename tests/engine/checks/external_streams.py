"""Streams of other libraries, which may be destroyed, and default streams of threads."""

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Iterator

import torch
from harness import TestCase, assert_same, lms, numbers, page_out, paged_out, run_tests
from simcuda.gate import held

MIB = 1 << 20
LIMIT = 64 * MIB
COUNT = MIB  # elements of 4 bytes
PER_THREAD = 2  # cudaStreamPerThread
PATIENCE = 200  # ms that what must not happen is given to happen
CUDART = torch.cuda.cudart()


def create() -> torch.cuda.ExternalStream:
    handle = ctypes.c_void_p()
    assert CUDART.cudaStreamCreate(ctypes.addressof(handle)) == CUDART.cudaError.success
    return torch.cuda.ExternalStream(handle.value)


def destroy(stream: torch.cuda.ExternalStream) -> None:
    assert CUDART.cudaStreamDestroy(stream.cuda_stream) == CUDART.cudaError.success


@contextlib.contextmanager
def short_lived() -> Iterator[torch.cuda.ExternalStream]:
    """The current stream in this context, destroyed at its end. Its work is in order."""
    stream, before = create(), torch.cuda.current_stream()
    stream.wait_stream(before)
    with torch.cuda.stream(stream):
        yield stream
    before.wait_stream(stream)
    destroy(stream)


def use_all_memory() -> None:
    """Whatever can leave does, and what is free is written to."""
    for _ in range(2):
        filled = [torch.full((COUNT,), -1.0, device="cuda") for _ in range(20)]
        assert sum(lms.is_resident(tensor) for tensor in filled) < len(filled)
    torch.cuda.synchronize()


def begin_anew() -> None:
    """No memory is cached for streams of earlier checks: to give it back waits for the device."""
    torch.cuda.reclaim_inactive()
    torch.cuda.empty_cache()


def stays_unfinished(stream: torch.cuda.Stream) -> bool:
    """Whether the stream waits for something."""
    end = time.monotonic() + PATIENCE / 1000
    while time.monotonic() < end:
        if stream.query():
            return False
        time.sleep(0.001)
    return True


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


class TestExternalStreams(TestCase):
    def test_storages_made_on_it(self) -> None:
        with short_lived():
            tensors = [numbers(COUNT).cuda() + i for i in range(4)]
        page_out(*tensors)
        for i, tensor in enumerate(tensors):
            assert_same(tensor + 1, numbers(COUNT) + i + 1)
        use_all_memory()
        for i, tensor in enumerate(tensors):
            assert_same(tensor, numbers(COUNT) + i)

    def test_storages_used_on_it(self) -> None:
        tensors = [numbers(COUNT).cuda() + i for i in range(4)]
        with short_lived():
            results = [tensor * 2 for tensor in tensors]
        page_out(*tensors)
        use_all_memory()
        for i, (tensor, result) in enumerate(zip(tensors, results, strict=True)):
            assert_same(tensor, numbers(COUNT) + i)
            assert_same(result, (numbers(COUNT) + i) * 2)

    def test_storages_that_die_later(self) -> None:
        tensors = [numbers(COUNT).cuda() for _ in range(4)]
        with short_lived() as stream:
            results = [tensor * 2 for tensor in tensors]
            tensors[0].record_stream(stream)
            view = tensors[1][10:]
        del tensors, results, view
        use_all_memory()

    def test_storages_that_come_back_to_its_memory(self) -> None:
        with short_lived():
            absent = [paged_out(numbers(COUNT) + i) for i in range(2)]
            dropped = absent[0] * 3
        del dropped
        for i, tensor in enumerate(absent):
            assert_same(tensor * 2, (numbers(COUNT) + i) * 2)

    def test_memory_that_it_borrows(self) -> None:
        tensors = [numbers(COUNT).cuda() + i for i in range(20)]  # more than the limit
        for _ in range(3):
            with short_lived():
                results = [tensor * 2 for tensor in tensors]
                address = torch.cuda.caching_allocator_alloc(4 * COUNT)
                torch.cuda.caching_allocator_delete(address)
            for i, result in enumerate(results):
                assert_same(result, (numbers(COUNT) + i) * 2)
        del results
        use_all_memory()

    def test_lms_turned_off_after_it(self) -> None:
        with short_lived():
            tensor = numbers(COUNT).cuda() * 2
        page_out(tensor)
        lms.set_enabled_lms(False)
        try:
            assert_same(tensor, numbers(COUNT) * 2)
        finally:
            lms.set_enabled_lms(True)

    def test_a_new_stream_with_its_handle(self) -> None:
        """It waits for bytes that the old one has waited for."""
        begin_anew()
        tensor = paged_out(numbers(COUNT))
        with held(torch.cuda.current_stream()):  # and so what comes to its memory
            old = create()
            with torch.cuda.stream(old):
                tensor[:10] * 1.0
            destroy(old)
            new = create()
            assert new.cuda_stream == old.cuda_stream, "the handle was to be given again"
            with torch.cuda.stream(new):
                result = tensor * 2
            assert stays_unfinished(new)
        new.synchronize()
        assert_same(result, numbers(COUNT) * 2)
        del result
        destroy(new)

    def test_the_default_stream_of_another_thread(self) -> None:
        """A page-out waits for what another thread has queued on its own stream."""
        begin_anew()
        stream = torch.cuda.ExternalStream(PER_THREAD)
        tensor, results = numbers(COUNT).cuda(), []
        launched, opened = threading.Event(), threading.Event()
        torch.cuda.synchronize()

        def work() -> None:
            with torch.cuda.stream(stream), held(stream):
                results.append(tensor * 2)
                launched.set()
                opened.wait()

        thread = in_thread(work)
        launched.wait()
        with torch.cuda.stream(stream):  # this thread's
            tensor[:10] * 1.0
        page_out(tensor)
        filled = [torch.full((COUNT,), -1.0, device="cuda") for _ in range(8)]
        waits = stays_unfinished(torch.cuda.current_stream())
        opened.set()
        thread.join()
        assert waits, "memory was used again before another thread's work on it"
        del filled
        assert_same(results[0], numbers(COUNT) * 2)
        assert_same(tensor, numbers(COUNT))

    def test_work_that_lms_does_not_see(self) -> None:
        """A kernel on an external stream has not ended when the tensor dies.

        What comes back to the memory comes after it.
        """
        stream, opened = create(), threading.Event()
        with torch.cuda.stream(stream):
            absent = paged_out(numbers(COUNT))
            tensor = torch.zeros(COUNT, device="cuda")
            address = tensor.data_ptr()
        torch.cuda.synchronize()

        @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        def wait(_data: object) -> None:
            opened.wait()

        runtime = ctypes.CDLL(None)
        handle = ctypes.c_void_p(stream.cuda_stream)
        assert runtime.cudaLaunchHostFunc(handle, wait, None) == 0
        assert runtime.cudaMemsetAsync(ctypes.c_void_p(address), 0, 4 * COUNT, handle) == 0
        timer = threading.Timer(PATIENCE / 1000, opened.set)
        timer.start()
        del tensor
        result = absent * 2
        timer.join()
        torch.cuda.synchronize()
        assert_same(result, numbers(COUNT) * 2)
        assert_same(absent, numbers(COUNT))
        destroy(stream)


if __name__ == "__main__":
    lms.set_limit_lms(LIMIT)
    lms.set_enabled_lms(True)
    paged_out(numbers(COUNT)).add_(1)  # LMS's streams get no handle that comes up here
    run_tests()
