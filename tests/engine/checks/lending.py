"""A stream that comes when all memory is the default stream's is lent what it needs."""

import torch
from harness import Address, assert_same, lms, main, numbers

MIB = 1 << 20
LIMIT = 64 * MIB
COUNT = MIB  # elements of 4 bytes
HOSTS = [numbers(COUNT) + i for i in range(20)]  # more than the limit
SIDE = torch.cuda.Stream()


def tensors_in_one_segment() -> list[torch.Tensor]:
    tensors = [host.cuda() for host in HOSTS]
    assert large_segments() == [0], "memory was to become one segment of the default stream"
    return tensors


def large_segments() -> list[int]:
    """The streams that the segments of large storages belong to."""
    snapshot = torch.cuda.memory_snapshot()
    return [segment["stream"] for segment in snapshot if segment["segment_type"] == "large"]


def check_operators_that_use_the_segment() -> None:
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


def check_the_owner_waits_for_the_borrower() -> None:
    tensors = tensors_in_one_segment()
    torch.cuda.synchronize()
    for _ in range(5):
        with torch.cuda.stream(SIDE):
            lent = tensors[0] * 3
            result = lent[:1000] * 5
            del lent
        overwritten = [torch.full((COUNT,), -1.0, device="cuda") for _ in range(4)]
        SIDE.synchronize()
        assert_same(result, HOSTS[0][:1000] * 15)
        del overwritten


def check_memory_that_is_not_managed() -> None:
    tensors = tensors_in_one_segment()
    torch.cuda.synchronize()
    with torch.cuda.stream(SIDE):
        address = torch.cuda.caching_allocator_alloc(4 * COUNT, stream=SIDE)
        scratch = torch.as_tensor(Address(tensors[1], address))
        scratch.copy_(tensors[1])
        result = scratch[:1000] * 5
        torch.cuda.caching_allocator_delete(address)
    overwritten = [torch.full((COUNT,), -1.0, device="cuda") for _ in range(4)]
    SIDE.synchronize()
    assert_same(result, HOSTS[1][:1000] * 5)
    del overwritten


def check_lent_memory_after_lms() -> None:
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
        overwritten = [torch.full((COUNT,), -1.0, device="cuda") for _ in range(8)]
        SIDE.synchronize()
        assert_same(result, HOSTS[0][:1000] * 15)
        del overwritten
    finally:
        lms.set_enabled_lms(True)


if __name__ == "__main__":
    lms.set_limit_lms(LIMIT)
    lms.set_enabled_lms(True)
    main(globals())
