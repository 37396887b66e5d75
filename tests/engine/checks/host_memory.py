"""Host memory: slabs reserved ahead, the limit, and other processes.

The checks of other processes start this program again: `host_memory.py hold BYTES LIMIT` pages so
much out, says so and stays until it is killed; `host_memory.py share` is one of two processes that
were launched together.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import simcuda
import torch
from harness import TestCase, assert_same, lms, numbers, page_out, paged_out, run_tests

MIB = 1 << 20
SLAB = 8 * MIB  # the smallest


def host_bytes(name: str) -> int:
    return lms.stats()[f"lms.host_bytes.{name}"]


def slabs_made() -> int:
    """How many the driver was asked for, where none is larger than a piece."""
    return simcuda.calls().get("cudaHostRegister", 0)


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def mib(count: int) -> torch.Tensor:
    """Data for a tensor of so many MiB."""
    return numbers(count * MIB // 4)


def start_afresh(limit: int = 0) -> None:
    """Gives all host memory back."""
    torch.cuda.set_enabled_lms(False)
    lms.set_host_limit(limit)
    torch.cuda.set_enabled_lms(True)
    assert host_bytes("reserved") == 0


def bytes_kept_from_forks() -> int:
    """Of this process's memory."""
    kept = size = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split()
        if name == "Size:":
            size = int(values[0]) << 10
        elif name == "VmFlags:" and "dc" in values:
            kept += size
    return kept


def share() -> None:
    """Half of the limit is this process's own."""
    start_afresh(48 * MIB)
    first, second = ([mib(4).cuda() for _ in range(5)] for _ in range(2))
    with lms.pin(*first):
        page_out(*second)
    assert 20 * MIB <= host_bytes("reserved") <= 24 * MIB, "more than its share, ahead"
    for tensor in second:
        assert_same(tensor, mib(4))
    before = lms.stats()["lms.page_out.bytes"]
    page_out(*first, *second)  # in this order
    copied = lms.stats()["lms.page_out.bytes"] - before
    assert copied == 40 * MIB, "it took more than its share to keep copies of resident bytes"
    assert host_bytes("reserved") >= 40 * MIB
    for tensor in first + second:
        assert_same(tensor, mib(4))


def hold(size: int, limit: int) -> None:
    torch.cuda.set_enabled_lms(True)
    lms.set_host_limit(limit)
    tensor = paged_out(torch.zeros(size, dtype=torch.uint8))
    print(host_bytes("reserved"), flush=True)
    time.sleep(600)
    del tensor


class TestHostMemory(TestCase):
    def test_no_memory_is_taken_before_the_first_page_out(self) -> None:
        before = slabs_made()
        torch.cuda.set_enabled_lms(True)
        (mib(4).cuda() + 1).sum()
        assert host_bytes("reserved") == 0 and slabs_made() == before

    def test_the_next_slab_is_made_before_it_is_needed(self) -> None:
        start_afresh()
        before = slabs_made()
        tensors = [paged_out(mib(2))]
        assert eventually(lambda: slabs_made() == before + 2), "nothing was reserved ahead"
        assert host_bytes("current") == 2 * MIB
        assert host_bytes("reserved") == host_bytes("page_locked") == 2 * SLAB
        tensors += [paged_out(mib(2)) for _ in range(3)]  # the rest of the first slab
        assert slabs_made() == before + 2
        tensors += [paged_out(mib(2))]  # in what was ready; the next one is ordered
        assert eventually(lambda: slabs_made() == before + 3)
        for tensor in tensors:
            assert_same(tensor, mib(2))

    def test_what_is_reserved_ahead_is_one_slab_of_a_quarter_at_most(self) -> None:
        start_afresh()
        tensors = []
        for _ in range(40):
            tensors.append(paged_out(mib(2)))
            used, reserved = host_bytes("current"), host_bytes("reserved")
            assert reserved - used <= 2 * max(SLAB, reserved // 4), (used, reserved)
        torch.cuda.set_enabled_lms(False)
        assert host_bytes("reserved") == 0  # the one that was not used yet too

    def test_large_storages_lie_in_what_small_ones_leave(self) -> None:
        start_afresh()
        small, large = [], []
        for _ in range(12):
            large.append(paged_out(mib(16)))
            small.append(paged_out(mib(2)))
        large.clear()
        before = host_bytes("reserved")
        large += [paged_out(mib(48)) for _ in range(3)]
        assert host_bytes("reserved") == before
        for tensor in large:
            assert_same(tensor, mib(48))
            tensor.add_(1)
        page_out(*large)  # into other pieces
        for tensor in large:
            assert_same(tensor, mib(48) + 1)
        for tensor in small:
            assert_same(tensor, mib(2))
        start_afresh()

    def test_the_limit_holds_for_what_is_reserved_ahead(self) -> None:
        start_afresh(13 * MIB)
        tensors = [paged_out(mib(2)) for _ in range(4)]
        assert host_bytes("reserved") == SLAB
        tensors += [paged_out(mib(2)) for _ in range(2)]  # slabs of just what is needed
        assert SLAB < host_bytes("reserved") <= 13 * MIB
        too_much = mib(2).cuda()
        torch.cuda.reclaim_inactive()
        assert lms.is_resident(too_much)
        start_afresh()

    def test_what_is_reserved_ahead_makes_room_for_what_is_needed(self) -> None:
        start_afresh(24 * MIB)
        small = paged_out(mib(6))
        assert host_bytes("reserved") == 2 * SLAB
        large = paged_out(mib(16))
        assert host_bytes("reserved") == 24 * MIB
        assert_same(small, mib(6))
        assert_same(large, mib(16))
        start_afresh()

    def test_slabs_that_hold_nothing_make_room_for_what_is_needed(self) -> None:
        start_afresh(24 * MIB)
        tensors = [paged_out(mib(6)) for _ in range(2)]
        assert host_bytes("reserved") == 3 * SLAB
        del tensors
        large = paged_out(mib(24))
        assert host_bytes("reserved") == 24 * MIB
        assert_same(large, mib(24))
        start_afresh()

    def test_a_lower_limit_gives_up_what_is_reserved_ahead(self) -> None:
        start_afresh()
        tensor = paged_out(mib(6))
        assert host_bytes("reserved") == 2 * SLAB
        lms.set_host_limit(2 * SLAB)
        assert host_bytes("reserved") == 2 * SLAB
        lms.set_host_limit(2 * SLAB - 1)
        assert host_bytes("reserved") == SLAB
        assert_same(tensor, mib(6))
        start_afresh()

    def test_a_driver_that_refuses_is_not_asked_ahead_again(self) -> None:
        start_afresh()
        simcuda.set_faults("cudaHostRegister:2-,cudaHostAlloc:1-")
        before = slabs_made()
        tensors = [paged_out(mib(6))]
        assert eventually(lambda: host_bytes("page_locked") == SLAB), "nobody knows that it refused"
        assert host_bytes("reserved") == 2 * SLAB
        tensors += [paged_out(mib(6))]
        assert slabs_made() == before + 2
        tensors += [paged_out(mib(6))]
        assert slabs_made() == before + 3  # on demand
        assert host_bytes("page_locked") == SLAB
        simcuda.set_faults("")
        tensors += [paged_out(mib(6))]  # on demand, and one more ahead
        assert eventually(lambda: slabs_made() == before + 5), "it stays without memory ahead"
        for tensor in tensors:
            assert_same(tensor, mib(6))
        start_afresh()

    def test_large_slabs_are_page_locked_in_pieces(self) -> None:
        start_afresh()
        before = slabs_made(), simcuda.calls().get("cudaHostUnregister", 0)
        tensors = [paged_out(mib(100)) for _ in range(2)]  # across the borders of pieces
        assert host_bytes("reserved") == host_bytes("page_locked") == 300 * MIB
        assert eventually(lambda: simcuda.stats().page_locked_bytes == 300 * MIB)
        assert slabs_made() == before[0] + 6, "three slabs of 64 and 36 MiB"
        assert eventually(lambda: bytes_kept_from_forks() >= 300 * MIB)
        for tensor in tensors:
            assert_same(tensor, mib(100))
            tensor.add_(1)
        page_out(*tensors)
        for tensor in tensors:
            assert_same(tensor, mib(100) + 1)
        start_afresh()
        assert simcuda.stats().page_locked_bytes == 0
        assert simcuda.calls()["cudaHostUnregister"] == before[1] + 6

    def test_a_piece_that_is_refused_leaves_nothing_page_locked(self) -> None:
        start_afresh()
        simcuda.set_faults("cudaHostRegister:2")
        tensor = paged_out(mib(100))  # from cudaHostAlloc; and one more ahead
        assert host_bytes("reserved") == host_bytes("page_locked") == 200 * MIB
        assert eventually(lambda: simcuda.stats().page_locked_bytes == 200 * MIB)
        assert_same(tensor, mib(100))
        del tensor
        start_afresh()
        assert simcuda.stats().page_locked_bytes == 0
        simcuda.set_faults("cudaHostRegister:2-,cudaHostAlloc:1-")
        tensor = paged_out(mib(100))
        assert host_bytes("reserved") == 100 * MIB and host_bytes("page_locked") == 0
        assert simcuda.stats().page_locked_bytes == 0
        assert_same(tensor, mib(100))
        simcuda.set_faults("")
        del tensor
        start_afresh()

    def test_processes_stay_within_the_limit_together(self) -> None:
        start_afresh(48 * MIB)
        command = [sys.executable, __file__, "hold", str(20 * MIB), str(48 * MIB)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            theirs = int(other.stdout.readline())
            assert theirs >= 20 * MIB
            assert host_bytes("others") == theirs and host_bytes("reserved") == 0
            tensors = [mib(4).cuda() for _ in range(10)]
            torch.cuda.reclaim_inactive()
            resident = sum(map(lms.is_resident, tensors))
            assert 0 < resident < 10, "40 MiB fit beside the other's 20, or nothing did"
            assert 48 * MIB - 4 * MIB < host_bytes("reserved") + theirs <= 48 * MIB
            other.kill()
        assert other.returncode == -9
        assert host_bytes("others") == 0
        page_out(*tensors)
        for tensor in tensors:
            assert_same(tensor, mib(4))
        start_afresh()

    def test_processes_launched_together_get_what_they_need(self) -> None:
        environment = {**os.environ, "LOCAL_WORLD_SIZE": "2"}
        done = subprocess.run(
            [sys.executable, __file__, "share"], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    torch.cuda.init()
    if sys.argv[1:2] == ["hold"]:
        hold(*map(int, sys.argv[2:]))
    elif sys.argv[1:2] == ["share"]:
        share()
    else:
        run_tests()
