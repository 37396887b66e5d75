"""NCCL between the devices of one process, outside of torch.distributed."""

import torch
from harness import TestCase, assert_same, is_held, lms, numbers, page_out, run_tests
from torch.cuda import comm, nccl

COUNT = 100_000  # elements
DEVICES = range(2)


def on_each_device() -> list[torch.Tensor]:
    """Tensors that are paged out."""
    tensors = [(numbers(COUNT) * (i + 1)).to(f"cuda:{i}") for i in DEVICES]
    page_out(*tensors)
    return tensors


class TestNccl(TestCase):
    def test_reductions(self) -> None:
        tensors = on_each_device()
        nccl.all_reduce(tensors)
        for tensor in tensors:
            assert not is_held(tensor)
            assert_same(tensor, numbers(COUNT) * 3)
        result = comm.reduce_add(on_each_device(), 1)
        assert_same(result, numbers(COUNT) * 3)
        assert not is_held(result)

    def test_copies(self) -> None:
        source = on_each_device()[0]
        for copy in comm.broadcast(source, DEVICES):
            assert_same(copy, numbers(COUNT))
        small = [torch.ones(n, device="cuda") for n in (3, 5)]
        page_out(*small)
        for copies in comm.broadcast_coalesced([*small, source], DEVICES, buffer_size=100):
            page_out(*small)
            for copy, size in zip(copies, (3, 5), strict=False):
                assert_same(copy, torch.ones(size))
            assert_same(copies[2], numbers(COUNT))

    def test_streams_that_lms_does_not_know(self) -> None:
        """Work is queued there after the call, which only the program waits for."""
        tensors = on_each_device()
        streams = [torch.cuda.Stream(i) for i in DEVICES]
        with torch.cuda.stream(streams[1]):  # comes late to the collective
            busy = torch.ones(1000, 1000, device="cuda:1")
            for _ in range(5):
                busy = busy @ busy
        nccl.all_reduce(tensors, streams=streams)
        assert is_held(tensors[0]) and is_held(tensors[1])
        for stream in streams:
            stream.synchronize()
        for tensor in tensors:
            assert_same(tensor, numbers(COUNT) * 3)


if __name__ == "__main__":
    lms.set_enabled_lms(True)
    run_tests()
