"""Train on several GPUs: data parallel, the optimizer's state sharded, paging on each of them.

    torchrun --standalone --nproc-per-node=2 sharded.py --width 8192 --layers 24

Each process prints the losses on its own data, and what it moved.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--layers", type=int, default=8, help="how many")
    parser.add_argument("--width", type=int, default=512, help="of a layer")
    parser.add_argument("--batch-size", type=int, default=1024, help="rows per process and step")
    parser.add_argument("--steps", type=int, default=5, help="how many")
    parser.add_argument("--backend", default="nccl", help="gloo where there is no NCCL")
    parser.add_argument("--lms", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_enabled_lms(args.lms)
    dist.init_process_group(args.backend)
    rank = dist.get_rank()
    for step, loss in enumerate(train(args.layers, args.width, args.batch_size, args.steps), 1):
        print(f"process {rank} step {step} loss {loss:.4f}", flush=True)
    moved = torch.cuda.lms.stats()["lms.page_in.bytes"] >> 20
    print(f"process {rank} paged in {moved} MiB", flush=True)
    dist.destroy_process_group()


def train(layers: int, width: int, batch_size: int, steps: int) -> list[float]:
    """The losses of this process."""
    torch.manual_seed(0)
    stack = [layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.GELU())]
    model = DistributedDataParallel(nn.Sequential(*stack).cuda(), gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    torch.manual_seed(dist.get_rank() + 1)  # each process has its own data
    losses = []
    for _ in range(steps):
        x = torch.randn(batch_size, width, device="cuda")
        loss = nn.functional.mse_loss(model(x), x.flip(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    main()
