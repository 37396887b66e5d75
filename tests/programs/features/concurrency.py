"""Threads and processes."""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from features.common import Result, Section, gradients, numbers, perceptron

SECTION = feature = Section("Threads and processes")
SECONDS = 60  # that a process waits for another


@feature("A pool of threads that serves inference")
def inference_pool() -> Generator[None, None, Result]:
    model = perceptron().eval()

    def serve(seed: int) -> Tensor:
        with torch.inference_mode():
            return model(numbers(512, 512, seed=seed)).cpu()

    with ThreadPoolExecutor(3) as pool:
        first = list(pool.map(serve, range(6)))
        yield
        second = list(pool.map(serve, range(6)))
    return {"first": first, "second": second}


@feature("Threads that each train a model, on streams of their own")
def training_threads() -> Generator[None, None, Result]:
    models = [perceptron(layers=2) for _ in range(2)]

    def train(model: nn.Module, seed: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            for step in range(2):
                model(numbers(512, 512, seed=seed + step)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            torch.cuda.current_stream().synchronize()

    torch.cuda.synchronize()
    threads = [threading.Thread(target=train, args=pair) for pair in zip(models, (1, 5))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield
    return {"weights": [model.state_dict() for model in models]}


@feature("`DataParallel`")
def data_parallel() -> Generator[None, None, Result]:
    model = perceptron()
    parallel = nn.DataParallel(model, device_ids=range(torch.cuda.device_count()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(2):
        y = parallel(numbers(512, 512, seed=step))
        yield
        y.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"y": y, "weights": model.state_dict()}


def train_shared(received: Any, sent: Any) -> None:
    """In a process of its own: trains another's model, and shares a tensor of its own."""
    model, x = received.get(timeout=SECONDS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    sent.put(x * 2)
    received.get(timeout=SECONDS)
    torch.cuda.synchronize()  # and lets go of what is shared, which a process that ends does not


@feature("`torch.multiprocessing`: models and tensors shared between processes, as for Hogwild")
def shared_tensors() -> Generator[None, None, Result]:
    processes = torch.multiprocessing.get_context("spawn")
    model, x, others = perceptron(), numbers(512, 512), numbers(512, 512, seed=2)
    yield
    sent, received = processes.Queue(), processes.Queue()
    process = processes.Process(target=train_shared, args=(sent, received))
    process.start()
    sent.put((model, x))
    doubled = received.get(timeout=SECONDS)
    total = doubled + others
    yield
    total += doubled
    torch.cuda.synchronize()
    del doubled
    sent.put("done")
    process.join()
    torch.cuda.ipc_collect()
    yield
    model(x).sum().backward()
    return {"total": total, "weights": model.state_dict(), "gradients": gradients(model)}


@feature("`DataLoader` with worker processes and page-locked memory")
def data_loader() -> Generator[None, None, Result]:
    data = TensorDataset(torch.arange(4096.0).view(-1, 8))
    seen = []
    for (batch,) in DataLoader(data, 128, num_workers=1, pin_memory=True):
        seen.append(batch.cuda(non_blocking=True) * 2)
    yield
    return {"seen": seen}
