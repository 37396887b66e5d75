"""A stream that comes when all memory is the default stream's is lent it, as is one with less."""

import torch
from harness import Address, TestCase, assert_same, lms, numbers, paged_out, run_tests

MIB = 1 << 20
LIMIT = 64 * MIB
COUNT = MIB  # elements of 4 bytes
HOSTS = [numbers(COUNT) + i for i in range(20)]  # more than the limit
SIDE = torch.cuda.Stream()


def tensors_in_one_segment() -> list[torch.Tensor]:
    """More than fit, after which the memory belongs to the default stream."""
    give_all_back()
    tensors = [host.cuda() for host in HOSTS]
    assert large_segments() == [0], "memory was to become one segment of the default stream"
    return tensors


def give_all_back() -> None:
    torch.cuda.reclaim_inactive()
    torch.cuda.empty_cache()


def large_segments() -> list[int]:
    """The streams that the segments of large storages belong to."""
    snapshot = torch.cuda.memory_snapshot()
    return [segment["stream"] for segment in snapshot if segment["segment_type"] == "large"]


def read_and_free(tensor: torch.Tensor) -> torch.Tensor:
    """Fifteen times some numbers, read on the current stream from memory that is free again.

    What was read had been written before, so that whatever overtakes the reading shows.
    """
    freed = tensor * 3
    torch.cuda.synchronize()
    return freed[:1000] * 5


def overwrite_what_is_free(blocks: int = 8) -> None:
    """On the current stream, which then ends before any other."""
    filled = [torch.full((COUNT,), -1.0, device="cuda") for _ in range(blocks)]
    torch.cuda.current_stream().synchronize()
    del filled
    torch.cuda.synchronize()


class TestLending(TestCase):
    def test_the_stream_with_most_of_the_memory_gets_all_of_it(self) -> None:
        give_all_back()
        with torch.cuda.stream(SIDE):
            other = HOSTS[0].cuda() * 3
        assert len(large_segments()) == 1
        tensors = [host.cuda() for host in HOSTS]
        assert large_segments() == [0]
        with torch.cuda.stream(SIDE):
            assert_same(other * 5, HOSTS[0] * 15)
        assert large_segments() == [0]
        for tensor, host in zip(tensors, HOSTS, strict=True):
            assert_same(tensor, host)

    def test_storages_that_come_back_to_lent_memory(self) -> None:
        """The first check, while LMS knows no sequence after which to fetch ahead."""
        with torch.cuda.stream(SIDE):
            absent = [paged_out(numbers(COUNT) + 1000 + i) for i in range(2)]
        tensors = tensors_in_one_segment()
        result = read_and_free(tensors[0])
        with torch.cuda.stream(SIDE):
            others = [tensor[:1000] * 7 for tensor in absent]
            del absent
        overwrite_what_is_free()
        assert_same(result, HOSTS[0][:1000] * 15)
        for i, other in enumerate(others):
            assert_same(other, (numbers(COUNT) + 1000 + i)[:1000] * 7)

    def test_operators_that_use_the_segment(self) -> None:
        tensors = tensors_in_one_segment()
        SIDE.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(SIDE):
            results = [tensor * 2 for tensor in tensors]
            assert large_segments() == [0]
            for result, host in zip(results, HOSTS, strict=True):
                assert_same(result, host * 2)
            results = [result + 1 for result in results]
        torch.cuda.current_stream().wait_stream(SIDE)
        for tensor, result, host in zip(tensors, results, HOSTS, strict=True):
            assert_same(tensor + result, host * 3 + 1)
        assert torch.cuda.max_memory_reserved() <= LIMIT

    def test_the_owner_waits_for_the_borrower(self) -> None:
        tensors = tensors_in_one_segment()
        with torch.cuda.stream(SIDE):
            result = read_and_free(tensors[0])
        overwrite_what_is_free()
        assert_same(result, HOSTS[0][:1000] * 15)

    def test_the_borrower_waits_for_the_owner(self) -> None:
        tensors = tensors_in_one_segment()
        result = read_and_free(tensors[0])
        with torch.cuda.stream(SIDE):
            overwrite_what_is_free()
        assert_same(result, HOSTS[0][:1000] * 15)

    def test_memory_that_is_not_managed(self) -> None:
        tensors = tensors_in_one_segment()
        with torch.cuda.stream(SIDE):
            address = torch.cuda.caching_allocator_alloc(4 * COUNT, stream=SIDE)
            scratch = torch.as_tensor(Address(tensors[1], address))
            scratch.copy_(tensors[1])
            torch.cuda.synchronize()
            result = scratch[:1000] * 5
            torch.cuda.caching_allocator_delete(address)
        overwrite_what_is_free()
        assert_same(result, HOSTS[1][:1000] * 5)

    def test_lent_memory_after_lms(self) -> None:
        tensors = tensors_in_one_segment()
        with torch.cuda.stream(SIDE):
            lent = tensors[0] * 3
        torch.cuda.synchronize()
        del tensors
        lms.set_enabled_lms(False)
        try:
            with torch.cuda.stream(SIDE):
                result = lent[:1000] * 5
                del lent
            overwrite_what_is_free(LIMIT // (4 * COUNT) - 2)  # all of it
            assert_same(result, HOSTS[0][:1000] * 15)
        finally:
            lms.set_enabled_lms(True)


if __name__ == "__main__":
    lms.set_limit_lms(LIMIT)
    lms.set_enabled_lms(True)
    run_tests()
