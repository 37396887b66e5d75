"""Every collective of NCCL against the same sum on the host; torchrun starts the processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import reduce

import torch
import torch.distributed as dist
from torch import Tensor

LARGE = 200_001  # numbers: several pieces, the last one smaller
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.uint8)
REDUCTIONS: dict[dist.ReduceOp.RedOpType, Callable[[Tensor, Tensor], Tensor]] = {
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
}


def numbers(rank: int, dtype: torch.dtype = torch.float32, count: int = LARGE) -> Tensor:
    """What a rank gives, on the host: small, so that every type holds the results."""
    return ((torch.arange(count) + 3 * rank) % 5).to(dtype)


def mine(*arguments: object) -> Tensor:
    return numbers(dist.get_rank(), *arguments).cuda()


def everybody(*arguments: object) -> list[Tensor]:
    return [numbers(rank, *arguments) for rank in range(dist.get_world_size())]


def check_reductions() -> None:
    for dtype in TYPES:
        for reduction, combine in REDUCTIONS.items():
            tensor = mine(dtype)
            dist.all_reduce(tensor, reduction)
            assert tensor.cpu().equal(reduce(combine, everybody(dtype))), (dtype, reduction)
    tensor = mine()
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    torch.testing.assert_close(tensor.cpu(), sum(everybody()) / dist.get_world_size())
    tensor = mine()
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
    assert tensor.cpu().equal(sum(everybody()) / 2)


def check_one_root() -> None:
    rank = dist.get_rank()
    for root in range(dist.get_world_size()):
        tensor = mine()
        dist.broadcast(tensor, root)
        assert tensor.cpu().equal(numbers(root))
        tensor = mine()
        dist.reduce(tensor, root)
        if rank == root:
            assert tensor.cpu().equal(sum(everybody()))


def check_parts() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered = torch.empty(size * LARGE, device="cuda")
    dist.all_gather_into_tensor(gathered, mine())
    assert gathered.cpu().equal(torch.cat(everybody()))
    part = torch.empty(LARGE, device="cuda")
    dist.reduce_scatter_tensor(part, numbers(rank, torch.float32, size * LARGE).cuda())
    whole = sum(everybody(torch.float32, size * LARGE))
    assert part.cpu().equal(whole[rank * LARGE :][:LARGE])
    exchanged = torch.empty(size * LARGE, device="cuda")
    dist.all_to_all_single(exchanged, numbers(rank, torch.float32, size * LARGE).cuda())
    own = [each[rank * LARGE :][:LARGE] for each in everybody(torch.float32, size * LARGE)]
    assert exchanged.cpu().equal(torch.cat(own))


def check_messages() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    first, second = mine(), mine() * 2
    got = [torch.empty(LARGE, device="cuda") for _ in range(2)]
    operations = [dist.P2POp(dist.isend, tensor, right) for tensor in (first, second)]
    operations += [dist.P2POp(dist.irecv, tensor, left) for tensor in got]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert got[0].cpu().equal(numbers(left)) and got[1].cpu().equal(numbers(left) * 2)
    if rank == 0:
        dist.send(first, 1)
    elif rank == 1:
        dist.recv(got[0], 0)
        assert got[0].cpu().equal(numbers(0))


def check_groups() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    pair = dist.split_group(split_ranks=[[0, size - 1], list(range(1, size - 1))])
    tensor = mine()
    dist.all_reduce(tensor, group=pair)
    members = (0, size - 1) if rank in (0, size - 1) else range(1, size - 1)
    assert tensor.cpu().equal(sum(numbers(member) for member in members))


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            check()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
