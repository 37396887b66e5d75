"""Programs on torch.distributed, a process per device; see tests/engine/test_distributed.py.

torchrun distributed.py BACKEND [SCENARIO...]: every process runs each scenario in each of
modes.MODES and prints a line of JSON for it: {"rank": ..., "scenario": ..., "mode": ..., "result":
a dictionary, "memory": fields of modes.Memory, "limit": bytes}. Knows nothing of LMS but for
modes.measure.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from lms_demo.training import digest, make_deterministic
from modes import MODES, limit_for, measure
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 768
LAYERS = 8
BATCH = 128
MICROBATCHES = 4  # of a pipeline
STEPS = 3
LARGE = 1 << 19  # numbers in a tensor
WATCHDOG = 0.3  # seconds; it looks ten times a second
TIMEOUT = timedelta(seconds=120)  # a process that waits longer for the other fails

Result = dict[str, Any]


def perceptron(width: int = WIDTH) -> nn.Sequential:
    """2.3 MB of weights per layer if it is not made narrow."""
    torch.manual_seed(1)
    layers = (layer for _ in range(LAYERS) for layer in (nn.Linear(width, width), nn.GELU()))
    return nn.Sequential(*layers).cuda()


def batches(size: int = BATCH, width: int = WIDTH) -> Iterator[Tensor]:
    """This process's own inputs."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        yield torch.randn(size, width, generator=generator).cuda()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, *shape: int) -> Result:
    losses = []
    for x in batches(*shape):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    return {"losses": losses, "weights": weights_of(model)}


def weights_of(model: nn.Module) -> str:
    """Digest of this process's part."""
    return digest(
        {
            name: weight.to_local() if isinstance(weight, DTensor) else weight
            for name, weight in model.state_dict().items()
        }
    )


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def data_parallel(**options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(perceptron(), bucket_cap_mb=2, **options)


def plain() -> Result:
    model = data_parallel()
    return train(model, adamw(model))


def bucket_view() -> Result:
    model = data_parallel(gradient_as_bucket_view=True)
    return train(model, adamw(model))


def static_graph() -> Result:
    model = data_parallel(static_graph=True)
    return train(model, adamw(model))


class Half(nn.Module):
    """Has layers that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = perceptron()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[:LAYERS](x)


def unused_parameters() -> Result:
    model = DistributedDataParallel(Half(), bucket_cap_mb=2, find_unused_parameters=True)
    return train(model, adamw(model))


def compressed_gradients() -> Result:
    model = data_parallel()
    model.register_comm_hook(None, fp16_compress_hook)
    return train(model, adamw(model))


def accumulated() -> Result:
    """Gradients are exchanged in every other backward pass only."""
    model = data_parallel()
    optimizer = adamw(model)
    for x in batches():
        with model.no_sync():
            model(x).square().mean().backward()
        model(-x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"weights": weights_of(model)}


def sharded_optimizer() -> Result:
    """Most of what it needs is activations."""
    model = DistributedDataParallel(perceptron(WIDTH // 2))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    return train(model, optimizer, 32 * BATCH, WIDTH // 2)


def all_processes() -> DeviceMesh:
    """On the group there is: before 2.7 a mesh made otherwise wants NCCL."""
    group = dist.group.WORLD
    assert group is not None
    return DeviceMesh.from_group(group, "cuda")


def sharded_perceptron(**options: Any) -> nn.Module:
    model = perceptron()
    options["mesh"] = all_processes()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **options)
    return fully_shard(model, **options)


def sharded_weights(**options: Any) -> Result:
    model = sharded_perceptron(**options)
    return train(model, adamw(model))


def sharded_weights_stepping() -> Result:
    """The optimizer steps within the backward pass: the same bits as otherwise."""
    model = sharded_perceptron()
    optimizer = adamw(model)
    torch.cuda.lms.step_in_backward(optimizer)
    result = train(model, optimizer)
    assert result == sharded_weights()
    return result


def sharded_weights_on_the_host() -> Result:
    return sharded_weights(offload_policy=CPUOffloadPolicy())


def compiled_sharded_weights() -> Result:
    """Each block is compiled by itself, as between the hooks that gather its weights."""
    layers = perceptron()
    blocks = [layers[start : start + 2] for start in range(0, len(layers), 2)]
    for block in blocks:
        block.compile()
        fully_shard(block, mesh=all_processes())
    model = fully_shard(nn.Sequential(*blocks), mesh=all_processes())
    return train(model, adamw(model), 8)


def split_layers() -> Result:
    """Tensor parallel: by columns, then by rows."""
    model = perceptron()
    layers = [name for name, layer in model.named_children() if isinstance(layer, nn.Linear)]
    plan = {name: (ColwiseParallel, RowwiseParallel)[i % 2]() for i, name in enumerate(layers)}
    parallelize_module(model, all_processes(), plan)
    return train(model, adamw(model))


def pipeline() -> Result:
    """One batch after the other forward and backward, as they come; the layers in two halves."""
    rank, size = dist.get_rank(), dist.get_world_size()
    layers = list(perceptron())
    part = len(layers) // size
    model = nn.Sequential(*layers[rank * part :][:part])
    stage = PipelineStage(model, rank, size, torch.device("cuda", torch.cuda.current_device()))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=functional.mse_loss)
    optimizer = adamw(model)
    losses: list[Tensor] = []
    for x in batches(MICROBATCHES * BATCH):
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=x, losses=losses)
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": [loss.item().hex() for loss in losses], "weights": weights_of(model)}


def collectives() -> Result:
    """Each one by itself, with other work on the device before it is waited for."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(LARGE, device="cuda", dtype=torch.float32) + rank
    ballast = [torch.full((LARGE,), float(i), device="cuda") for i in range(8)]
    results: dict[str, Tensor] = {}

    def finish(name: str, work: Any, *tensors: Tensor) -> None:
        for tensor in ballast:
            tensor.add_(1)
        if work is not None:
            work.wait()
        results[name] = torch.cat([tensor.flatten() for tensor in tensors]).sum(0)

    summed = mine.clone()
    finish("all_reduce", dist.all_reduce(summed, async_op=True), summed)
    reduced = mine.clone()
    finish("reduce", dist.reduce(reduced, 0, async_op=True), reduced if rank == 0 else mine)
    sent = mine.clone()
    finish("broadcast", dist.broadcast(sent, 1, async_op=True), sent)
    gathered = [torch.empty_like(mine) for _ in range(size)]
    finish("all_gather", dist.all_gather(gathered, mine, async_op=True), *gathered)
    flat = torch.empty(size * LARGE, device="cuda")
    finish("all_gather_into_tensor", dist.all_gather_into_tensor(flat, mine, async_op=True), flat)
    into = [torch.empty_like(mine) for _ in range(size)] if rank == 0 else None
    finish("gather", dist.gather(mine, into, 0, async_op=True), *(into or [mine]))
    part = torch.empty_like(mine)
    parts = [mine * (i + 1) for i in range(size)] if rank == 0 else None
    finish("scatter", dist.scatter(part, parts, 0, async_op=True), part)
    dist.barrier()
    return {name: tensor.item().hex() for name, tensor in results.items()} | {
        "ballast": digest(dict(enumerate(ballast)))
    }


def groups() -> Result:
    """Calls that are launched together when their group ends, with other work before that."""
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", torch.cuda.current_device())
    ballast = [torch.full((LARGE,), float(i), device="cuda") for i in range(24)]
    tensors = [torch.arange(LARGE, device="cuda", dtype=torch.float32) * i for i in range(4)]
    with dist.distributed_c10d._coalescing_manager(device=device):
        for tensor in tensors:
            dist.broadcast(tensor.add_(rank), 1)
            for other in ballast:
                other.add_(1)
    received = torch.empty_like(tensors[0])
    sends = dist.P2POp(dist.isend, tensors[1] + rank, (rank + 1) % size)
    receives = dist.P2POp(dist.irecv, received, (rank - 1) % size)
    for work in dist.batch_isend_irecv([sends, receives]):
        for other in ballast:
            other.add_(1)
        work.wait()
    return {"tensors": digest(dict(enumerate([*tensors, received, *ballast])))}


def lightning_trainer() -> Result:
    """Its process group is the one that there is."""
    import lightning

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = perceptron()

        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            return self.layers(batch[0]).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return adamw(self)

    model = Lit()
    rows = TensorDataset(torch.cat([x.cpu() for x in batches()]))
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cuda", devices=dist.get_world_size(), strategy="ddp", max_epochs=1,
            logger=False, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=folder,
        )  # fmt: skip
        trainer.fit(model, DataLoader(rows, BATCH))
    return {"weights": weights_of(model)}


# Peak need over limit. Sharded weights are allocated on four streams, each of which has segments of
# its own; with those on the host there is hardly more than one segment.
SCENARIOS: dict[Callable[[], Result], float] = {
    collectives: 1.5,
    plain: 2.0,
    bucket_view: 2.0,
    static_graph: 2.0,
    unused_parameters: 1.5,
    compressed_gradients: 2.0,
    accumulated: 2.0,
    sharded_optimizer: 3.0,
    sharded_weights: 1.5,
    sharded_weights_stepping: 1.5,
    sharded_weights_on_the_host: 0.6,
    compiled_sharded_weights: 1.5,
    split_layers: 2.0,
    pipeline: 1.5,
    groups: 1.5,
    lightning_trainer: 2.0,
}
# Run if they are named only: what they need may not be installed.
NAMED_ONLY = {compiled_sharded_weights, lightning_trainer}


def release_collectives() -> None:
    """NCCL's watchdog lets go of their tensors after they have ended, with the next collective."""
    time.sleep(WATCHDOG)
    dist.barrier()


def main() -> None:
    make_deterministic()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend, *chosen = sys.argv[1:]
    dist.init_process_group(backend, timeout=TIMEOUT)
    usual = [scenario.__name__ for scenario in SCENARIOS if scenario not in NAMED_ONLY]
    for scenario, ratio in SCENARIOS.items():
        if scenario.__name__ not in (chosen or usual):
            continue
        limit = 0
        for mode in MODES:
            release_collectives()
            measured = measure(scenario, mode, limit)
            if mode == "off":
                limit = limit_for(measured.memory, ratio)
            row = {"rank": dist.get_rank(), "scenario": scenario.__name__, "mode": mode}
            row |= {"result": measured.result, "memory": asdict(measured.memory), "limit": limit}
            sys.stdout.write(json.dumps(row) + "\n")  # at once: the processes share it
            sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
