"""Tensors that a backend of torch.distributed copies out of LMS's sight.

Usage: collectives.py LIBRARY [TEST...]
"""

import contextlib
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from harness import TestCase, assert_same, is_held, lms, numbers, raises, run_tests
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

torch.ops.load_library(sys.argv.pop(1))
BACKEND = torch.ops.backend
COUNT = 100_000  # elements


def pinned() -> int:
    """Bytes of storages that are pinned when what has completed is released."""
    torch.cuda.empty_cache()
    return torch.cuda.memory_stats()["pinned_bytes.all.current"]


def work_beside_it() -> None:
    """Under chaos each operator pages out whatever is not pinned; some look for completed work."""
    for _ in range(20):
        torch.ones(COUNT, device="cuda").add_(1)


@contextlib.contextmanager
def under_way() -> Iterator[None]:
    """No copy of the backend is made in this context, however slow the machine is."""
    BACKEND.close_gate()
    try:
        yield
    finally:
        BACKEND.open_gate()


def in_groups(kind: str, asynchronous: bool, depth: int = 1) -> None:
    """Nothing is launched before the group ends, though its Works have completed."""
    group, device = dist.ProcessGroup.unbox(BACKEND.group()), torch.device("cuda")
    host = numbers(COUNT)
    source = host.cuda()
    target, other = (torch.zeros(COUNT, device="cuda") for _ in range(2))
    for _ in range(depth):
        group._start_coalescing(device)
    with under_way():
        for result in (target, other):
            BACKEND.gather(result, source, kind, asynchronous)
            work_beside_it()
        assert lms.is_resident(source) and lms.is_resident(target) and lms.is_resident(other)
        works = [group._end_coalescing(device) for _ in range(depth)]
        if works[0] and depth == 1:
            work_beside_it()
            assert lms.is_resident(source) and lms.is_resident(target)
    work_beside_it()
    BACKEND.wait()
    torch.cuda.synchronize()
    assert pinned() == 0
    assert not is_held(source) and not is_held(target) and not is_held(other)
    assert_same(target, host)
    assert_same(other, host)


class TestCollectives(TestCase):
    def test_pinned_until_an_event_says_so(self) -> None:
        host = numbers(COUNT)
        source, target = host.cuda(), torch.zeros(COUNT, device="cuda")
        with under_way():
            BACKEND.gather(target, source, "event")
            work_beside_it()
            assert lms.is_resident(source) and lms.is_resident(target)
        BACKEND.wait()
        assert_same(target, host)  # waits for the device
        assert pinned() == 0
        torch.cuda.reclaim_inactive()
        assert not lms.is_resident(source) and not lms.is_resident(target)
        assert_same(target, host)

    def test_copies_that_are_only_queued_are_waited_for(self) -> None:
        host = numbers(COUNT)
        source, target = host.cuda(), torch.zeros(COUNT, device="cuda")
        BACKEND.gather(target, source, "queued")
        assert pinned() == 0
        work_beside_it()
        BACKEND.wait()
        assert_same(target, host)

    def test_one_that_is_complete_when_its_work_is_seen(self) -> None:
        host = numbers(COUNT)
        source, target = host.cuda(), torch.zeros(COUNT, device="cuda")
        for _ in range(3):
            BACKEND.gather(target, source, "quick")
            work_beside_it()
        BACKEND.wait()
        assert pinned() == 0
        assert not is_held(source) and not is_held(target)
        assert_same(target, host)

    def test_group(self) -> None:
        in_groups("event", asynchronous=True)

    def test_group_whose_collectives_have_no_works(self) -> None:
        in_groups("event", asynchronous=False)

    def test_group_without_a_work(self) -> None:
        in_groups("silent", asynchronous=True)

    def test_group_on_the_current_stream(self) -> None:
        in_groups("silent", asynchronous=False)

    def test_group_in_a_group(self) -> None:
        """The Work of the inner one is none of what is launched by the outer one."""
        in_groups("event", asynchronous=True, depth=2)

    def test_group_that_cannot_begin(self) -> None:
        class Broken(dist.ProcessGroup):
            pass

        raises(RuntimeError, lambda: Broken(0, 1)._start_coalescing(torch.device("cuda")))
        source, target = numbers(COUNT).cuda(), torch.zeros(COUNT, device="cuda")
        BACKEND.gather(target, source, "event")
        BACKEND.wait()
        torch.cuda.synchronize()
        assert pinned() == 0

    def test_group_that_ends_when_lms_is_off(self) -> None:
        group, device = dist.ProcessGroup.unbox(BACKEND.group()), torch.device("cuda")
        source, target = numbers(COUNT).cuda(), torch.zeros(COUNT, device="cuda")
        group._start_coalescing(device)
        BACKEND.gather(target, source, "event")
        torch.cuda.set_enabled_lms(False)
        group._end_coalescing(device)
        torch.cuda.synchronize()
        torch.cuda.set_enabled_lms(True)
        BACKEND.gather(target, source, "event")
        BACKEND.wait()
        torch.cuda.synchronize()
        assert pinned() == 0

    def test_not_held_on_the_current_stream(self) -> None:
        """Outside of a group, what has no Work is queued there."""
        host = numbers(COUNT)
        source, target = host.cuda(), torch.zeros(COUNT, device="cuda")
        BACKEND.gather(target, source, "event", False)
        work_beside_it()
        assert not is_held(source) and not is_held(target)
        assert_same(target, host)

    def test_a_storage_that_dies_meanwhile(self) -> None:
        before = torch.cuda.memory_allocated()
        source, target = numbers(COUNT).cuda(), torch.zeros(COUNT, device="cuda")
        with under_way():
            BACKEND.gather(target, source, "event")
            del source, target
        torch.cuda.synchronize()
        assert pinned() == 0
        assert torch.cuda.memory_allocated() == before

    def test_memory_that_it_gives_back(self) -> None:
        """A request waits for a collective whose storages it needs the memory of."""
        mib = 1 << 20
        torch.cuda.set_limit_lms(64 * mib)
        sources = [torch.full((3 * mib,), float(i), device="cuda") for i in range(2)]
        target = torch.zeros(3 * mib, device="cuda")
        with under_way():
            BACKEND.gather(target, sources[0], "event")
        BACKEND.wait()
        sums = sum(torch.full((3 * mib,), float(i), device="cuda") for i in range(5)) + sources[1]
        assert_same(sums, torch.full((3 * mib,), 11.0))
        assert_same(target, torch.zeros(3 * mib))
        torch.cuda.set_limit_lms(0)

    def test_sharded_weights_are_not_held(self) -> None:
        """Though fully_shard compares the addresses of its shards."""
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        mesh = DeviceMesh.from_group(dist.group.WORLD, "cuda")
        model = fully_shard(torch.nn.Linear(300, 300).cuda(), mesh=mesh)
        for _ in range(2):
            model(torch.ones(5, 300, device="cuda")).sum().backward()
        shards = [parameter.to_local() for parameter in model.parameters()]
        torch.cuda.reclaim_inactive()
        assert [lms.is_resident(shard) for shard in shards] == [False, False]
        assert pinned() == 0
        dist.destroy_process_group()


if __name__ == "__main__":
    lms.set_enabled_lms(True)
    torch.ops.lms.set_chaos(True)
    run_tests()
