"""Collectives in virtual time, as arithmetic; torchrun starts the processes, whose clocks meet."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import simcuda
import torch
import torch.distributed as dist
from simcuda import cards

MS = 1_000_000  # nanoseconds
COUNT = 32 << 20  # numbers of two bytes
CARD = cards.card(sys.argv[1])
LINK = CARD["page_locked"]
HOST = 0.2 * MS  # at most what the calls of a measurement take


def collective_ns(sent: float) -> float:
    """What a collective takes in which each rank sends so many bytes."""
    nvlink = CARD.get("nvlink")
    rate = nvlink * CARD["nvlink_efficiency"] if nvlink else LINK["both"] / 2
    return float(CARD["collective_ns"] + 1e9 * sent / rate)


def around(tensor: torch.Tensor) -> float:
    """Bytes that each rank sends to reduce a tensor over all of them, around a ring."""
    ranks = dist.get_world_size()
    return 2 * tensor.nbytes * (ranks - 1) / ranks


def takes(work: Callable[[], object]) -> int:
    """Nanoseconds from when all ranks are here until this one's device has done the work."""
    dist.barrier()
    torch.cuda.synchronize()
    begin = simcuda.virtual_time()
    work()
    torch.cuda.synchronize()
    return simcuda.virtual_time() - begin


def near(found: float, expected: float) -> None:
    assert expected - 3 <= found <= expected + HOST, (found, expected)  # rounded


def check_what_they_take() -> None:
    ranks = dist.get_world_size()
    part = torch.empty(COUNT, dtype=torch.bfloat16, device="cuda")
    whole = torch.empty(ranks * COUNT, dtype=torch.bfloat16, device="cuda")
    sent = part.nbytes * (ranks - 1)
    near(takes(lambda: dist.all_gather_into_tensor(whole, part)), collective_ns(sent))
    near(takes(lambda: dist.reduce_scatter_tensor(part, whole)), collective_ns(sent))
    near(takes(lambda: dist.all_reduce(part)), collective_ns(around(part)))
    near(takes(lambda: dist.broadcast(part, 0)), collective_ns(part.nbytes))


def check_the_last_one_is_waited_for() -> None:
    tensor = torch.empty(COUNT, device="cuda")
    expected = collective_ns(around(tensor))

    def work(late: int) -> None:
        if dist.get_rank() == late:
            torch.cuda._sleep(7 * MS)
        dist.all_reduce(tensor)

    before = simcuda.busy()
    for late in range(dist.get_world_size()):
        near(takes(lambda late=late: work(late)), 7 * MS + expected)
    took = simcuda.busy().collective - before.collective
    barriers = dist.get_world_size() * collective_ns(8)
    near(took, dist.get_world_size() * expected + barriers)  # to wait is not to be busy


def check_they_run_beside_kernels() -> None:
    tensor = torch.empty(COUNT, device="cuda")

    def work() -> None:
        started = dist.all_reduce(tensor, async_op=True)
        torch.cuda._sleep(50 * MS)
        started.wait()

    near(takes(work), 50 * MS)


def check_one_comes_after_the_other_on_any_stream() -> None:
    tensors = [torch.empty(COUNT, device="cuda") for _ in range(2)]
    one, two = torch.cuda.Stream(), torch.cuda.Stream()

    def work() -> None:
        with torch.cuda.stream(one):
            torch.cuda._sleep(5 * MS)
            dist.all_reduce(tensors[0])
        with torch.cuda.stream(two):  # ready at once
            dist.all_reduce(tensors[1])

    near(takes(work), 5 * MS + 2 * collective_ns(around(tensors[0])))


def check_copies_share_the_link() -> None:
    """With NVLink they do not."""
    part = torch.empty(COUNT, dtype=torch.bfloat16, device="cuda")
    whole = torch.empty(dist.get_world_size() * COUNT, dtype=torch.bfloat16, device="cuda")
    locked = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(locked, device="cuda")
    side = torch.cuda.Stream()
    copy = CARD["copy_ns"] + 1e9 * target.nbytes / LINK["h2d"]
    gather = collective_ns(part.nbytes * (dist.get_world_size() - 1))
    assert gather < copy

    def work() -> None:
        with torch.cuda.stream(side):
            target.copy_(locked, non_blocking=True)
        dist.all_gather_into_tensor(whole, part)

    if CARD.get("nvlink"):
        near(takes(work), copy)
        return
    # Both at half their speed until the collective is done, the copy then alone.
    slow = 0.5 * LINK["both"] / (LINK["h2d"] + LINK["d2h"])
    near(takes(work), 2 * gather + copy - 2 * gather * slow)


def check_messages_are_refused() -> None:
    tensor = torch.empty(8, device="cuda")
    try:
        dist.send(tensor, 1) if dist.get_rank() == 0 else dist.recv(tensor, 0)
    except dist.DistBackendError as error:
        assert "messages are not simulated in timed mode" in str(error), error
    else:
        raise AssertionError("it ran")


def main() -> None:
    device = torch.device("cuda", 0)
    dist.init_process_group("nccl", device_id=device)
    torch.cuda.synchronize()
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            check()
    os._exit(0)  # after what has been refused, the group cannot be ended


if __name__ == "__main__":
    main()
