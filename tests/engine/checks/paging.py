"""What is copied, and in which order, when storages leave and come back."""

from collections.abc import Callable

import torch
from harness import (
    Address,
    TestCase,
    assert_same,
    lms,
    numbers,
    page_out,
    paged_out,
    run_tests,
    skip_without_second_device,
)

COUNT = 1 << 20  # elements of 4 bytes: more than the allocator's small segments take


def traffic() -> tuple[int, int]:
    """Copies in and out on device 0 so far."""
    stats = lms.stats(0)
    return stats["lms.page_in.copies"], stats["lms.page_out.copies"]


def moved(before: tuple[int, int]) -> tuple[int, int]:
    after = traffic()
    return after[0] - before[0], after[1] - before[1]


def use_memory_that_is_freed(
    host: torch.Tensor,
    view: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
    before: Callable[[torch.Tensor], object] = lambda tensor: None,
) -> None:
    """While another stream uses it. Upstream, nobody could get it before this thread goes on."""
    side = torch.cuda.Stream()
    absent = paged_out(numbers(COUNT) + 1000)
    torch.cuda.empty_cache()
    used = host.cuda()  # at the beginning of a segment, which is free but for that
    before(used)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        result = view(used) * 5
        del used
        other = absent * 3  # paged in to where `used` was
    torch.cuda.current_stream().wait_stream(side)
    assert_same(result, host * 5)
    assert_same(other, (numbers(COUNT) + 1000) * 3)


class TestPaging(TestCase):
    def test_what_was_not_written_leaves_without_a_copy(self) -> None:
        host = numbers(COUNT)
        tensor = paged_out(host)
        before, dropped = traffic(), lms.stats(0)["lms.dropped"]
        for _ in range(3):
            total = tensor.sum()  # reads
            del total
            page_out(tensor)
        assert moved(before)[0] == 3
        assert lms.stats(0)["lms.dropped"] - dropped == 3
        assert_same(tensor, host)

    def test_what_was_written_is_copied_again(self) -> None:
        host = numbers(COUNT)
        tensor = paged_out(host)
        writes = (
            lambda t: t.add_(1),
            lambda t: t[10:20].zero_(),
            lambda t: t.copy_(t * 2),
            lambda t: torch.mul(t, 3, out=t),
            lambda t: torch._foreach_add_([t], 5),
            lambda t: t.untyped_storage().fill_(0),
            lambda t: t.scatter_(0, torch.arange(5, device=t.device), 7.0),
        )
        for write in writes:
            before = traffic()
            write(tensor)
            write(host)
            page_out(tensor)
            assert moved(before)[1] >= 1, "it left without a copy"
            assert_same(tensor, host)
            page_out(tensor)

    def test_operators_that_write_without_saying_so(self) -> None:
        x = numbers(4, 8, 3).cuda()
        running = [paged_out(torch.zeros(8)), paged_out(torch.ones(8))]
        for _ in range(2):
            torch.nn.functional.batch_norm(x, *running, training=True)
            torch.cuda.reclaim_inactive()
        with lms.pin(*running):
            paged = [one.clone() for one in running]
            resident = [torch.zeros(8, device="cuda"), torch.ones(8, device="cuda")]
            with lms.pin(*resident):
                for _ in range(2):
                    torch.nn.functional.batch_norm(x, *resident, training=True)
        assert_same(paged[0], resident[0])
        assert_same(paged[1], resident[1])
        assert paged[0].sum() > 0

    def test_host_memory_of_clean_storages_goes_first(self) -> None:
        lms.set_host_limit(24 << 20)
        try:
            tensors = [paged_out(numbers(COUNT)) for _ in range(5)]  # 20 MiB
            for tensor in tensors:
                tensor.sum()
            others = [numbers(COUNT) + i for i in range(6)]
            more = [other.cuda() for other in others]
            torch.cuda.reclaim_inactive()  # not all of them can leave
            for tensor, other in zip(more, others, strict=True):
                assert_same(tensor, other)
            for tensor in tensors:
                assert_same(tensor, numbers(COUNT))
        finally:
            lms.set_host_limit(0)

    def test_a_host_copy_is_read_before_its_memory_is_used_again(self) -> None:
        skip_without_second_device()
        host = numbers(COUNT)
        slow, tensor = paged_out(numbers(4 * COUNT)), paged_out(host)
        torch.cuda.synchronize()
        slow.sum()
        product = tensor * 2  # the page-in is queued behind that of `slow`
        page_out(tensor)  # clean: only its memory is given up
        del tensor  # and now its host copy is, too
        other = (numbers(COUNT) + 1000).to("cuda:1")
        page_out(other)  # may take that memory
        torch.cuda.synchronize(1)
        assert_same(product, host * 2)
        assert_same(other, numbers(COUNT) + 1000)

    def test_memory_is_left_before_it_is_used_again(self) -> None:
        hosts = [numbers(COUNT) + i for i in range(4)]
        tensors = [host.cuda() for host in hosts]
        for turn in range(3):
            page_out(*tensors)
            fresh = [torch.full((COUNT,), float(turn), device="cuda") for _ in hosts]
            for tensor, host in zip(tensors, hosts, strict=True):
                assert_same(tensor + turn, host + turn)
            for tensor in fresh:
                assert tensor.eq(turn).all()
            del fresh, tensor

    def test_memory_is_left_by_all_streams_before_bytes_come(self) -> None:
        use_memory_that_is_freed(numbers(COUNT))

    def test_memory_of_small_storages_is_left_too(self) -> None:
        torch.cuda.set_size_lms(4 * COUNT)
        try:
            use_memory_that_is_freed(numbers(COUNT - 100))  # not managed for its size
        finally:
            torch.cuda.set_size_lms(1)

    def test_memory_used_by_its_address_is_left_too(self) -> None:
        def by_address(tensor: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(Address(tensor, tensor.data_ptr()))

        use_memory_that_is_freed(numbers(COUNT), by_address)
        use_memory_that_is_freed(numbers(COUNT), by_address, torch.Tensor.data_ptr)


if __name__ == "__main__":
    torch.cuda.set_enabled_lms(True)
    run_tests()
