"""Programs that use PyTorch in ways in which a tensor's memory is easily lost track of.

Each trains, and returns digests of everything that must be the same with LMS and without.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from lms_demo.training import digest
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import parallel_apply
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 768
BATCH = 256
STEPS = 3

Result = dict[str, Any]


def perceptron(layers: int = 8) -> nn.Sequential:
    """About 2.3 MiB of weights and of activations per layer."""
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH)]
    return nn.Sequential(*parts)


class Training:
    """A model with its optimizer and data, for scenarios that differ from others in one thing."""

    def __init__(self, model: nn.Module | None = None) -> None:
        torch.manual_seed(1)
        self.model = perceptron().cuda() if model is None else model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        self.generator = torch.Generator().manual_seed(1)
        self.losses: list[str] = []

    def batch(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets on the CPU."""
        x = torch.randn(BATCH, WIDTH, generator=self.generator)
        return x, torch.randint(WIDTH, (BATCH,), generator=self.generator)

    def loss(self, device: str = "cuda") -> Tensor:
        """Of the next batch, whose targets belong to the outputs' device."""
        x, target = self.batch()
        return functional.cross_entropy(self.model(x.cuda()), target.to(device))

    def update(self, loss: Tensor) -> None:
        """Backward pass and optimizer."""
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item().hex())

    def steps(self, count: int = STEPS) -> Training:
        """Trains."""
        for _ in range(count):
            self.update(self.loss())
        return self

    def result(self) -> Result:
        """What must be the same."""
        return {
            "losses": self.losses,
            "weights": digest(self.model.state_dict()),
            "optimizer": digest(self.optimizer.state_dict()),
        }


class Split(nn.Module):
    """Halves on two devices."""

    def __init__(self) -> None:
        super().__init__()
        self.first = perceptron().to("cuda:0")
        self.second = perceptron().to("cuda:1")

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).to("cuda:1"))


def two_devices() -> Result:
    """A model split over two devices: activations and gradients cross."""
    torch.manual_seed(1)
    training = Training(Split())
    for _ in range(STEPS):
        training.update(training.loss("cuda:1"))
    return training.result()


def replicas() -> Result:
    """A replica per device, each with a thread of its own, as data parallelism does it."""
    training = Training()
    for _ in range(STEPS):
        models = [training.model, copy.deepcopy(training.model).to("cuda:1")]
        batches = [training.batch() for _ in models]
        inputs = [(x.to(f"cuda:{i}"),) for i, (x, _) in enumerate(batches)]
        outputs = parallel_apply(models, inputs, devices=[0, 1])
        losses = [
            functional.cross_entropy(output, target.to(output.device)).to("cuda:0")
            for output, (_, target) in zip(outputs, batches, strict=True)
        ]
        loss = torch.stack(losses).mean()
        loss.backward()
        for mine, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
            mine.grad += other.grad.to("cuda:0")
        training.optimizer.step()
        training.optimizer.zero_grad()
        training.losses.append(loss.item().hex())
    return training.result()


def side_stream() -> Result:
    """The forward pass on a stream of the user's: the backward pass follows it there."""
    training = Training()
    stream = torch.cuda.Stream()
    for _ in range(STEPS):
        x, target = (part.cuda() for part in training.batch())
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            output = training.model(x)
        x.record_stream(stream)
        del x
        torch.cuda.current_stream().wait_stream(stream)
        output.record_stream(torch.cuda.current_stream())
        loss = functional.cross_entropy(output, target)
        loss.backward()
        training.optimizer.step()
        # The gradients belong to the side stream: it may reuse them when the optimizer is done.
        stream.wait_stream(torch.cuda.current_stream())
        training.optimizer.zero_grad()
        training.losses.append(loss.item().hex())
    return training.result()


def later_thread() -> Result:
    """Everything in a thread that starts after LMS was enabled."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: Training().steps().result()).result()


def parallel_threads() -> Result:
    """Two trainings at once on one device, each in a thread and on a stream of its own."""
    # The seed is global, so the models are made before the threads run.
    trainings = [Training(), Training()]
    ready = torch.cuda.current_stream().record_event()

    def work(training: Training) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_event(ready)
            training.steps()
            torch.cuda.current_stream().synchronize()

    with ThreadPoolExecutor(len(trainings)) as threads:
        list(threads.map(work, trainings))  # raises what they raised
    return {str(number): training.result() for number, training in enumerate(trainings)}


def data_loader() -> Result:
    """Batches from forked workers through page-locked memory."""
    training = Training()
    batches = [training.batch() for _ in range(STEPS)]
    dataset = TensorDataset(*(torch.cat(parts) for parts in zip(*batches, strict=True)))
    loader = DataLoader(dataset, BATCH, num_workers=2, pin_memory=True)
    for x, target in loader:
        output = training.model(x.cuda(non_blocking=True))
        training.update(functional.cross_entropy(output, target.cuda(non_blocking=True)))
    return training.result()


def switched_midway() -> Result:
    """LMS is enabled in the middle of the training, disabled and enabled again."""
    managed = torch.cuda.get_enabled_lms()

    def switch(on: bool) -> None:
        if managed:
            torch.cuda.set_enabled_lms(on)

    switch(False)
    training = Training().steps(1)
    switch(True)
    training.steps(2)
    switch(False)
    if torch.cuda.lms.stats()["lms.paged_out_bytes.current"]:
        raise AssertionError("disabling LMS left storages on the host")
    training.steps(1)
    switch(True)
    return training.steps(2).result()


def gradient_penalty() -> Result:
    """A loss with the gradient of the output in it: the backward pass is differentiated."""
    training = Training()
    for _ in range(STEPS):
        x, _ = training.batch()
        x = x.cuda().requires_grad_()
        output = training.model(x)
        (slope,) = torch.autograd.grad(output.square().sum(), x, create_graph=True)
        training.update(output.mean() + (slope.norm(dim=1) - 1).square().mean())
    return training.result()


class Swish(torch.autograd.Function):
    """Saves an input, an output and an intermediate, and writes into what it got."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        gate = torch.sigmoid(x)
        ctx.save_for_backward(x.clone(), scale)
        ctx.gate = gate
        ctx.mark_dirty(x)
        return x.mul_(gate).mul_(scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, scale = ctx.saved_tensors
        gate = ctx.gate
        slope = gate * (1 + x * (1 - gate))
        return gradient * scale * slope, (gradient * x * gate).sum(0)


class SwishLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return Swish.apply(self.linear(x), self.scale)


def custom_function() -> Result:
    """An autograd function written in Python."""
    torch.manual_seed(1)
    return Training(nn.Sequential(*(SwishLayer() for _ in range(8))).cuda()).steps().result()


def saved_and_loaded() -> Result:
    """A checkpoint file in the middle: training goes on from what was loaded."""
    before = Training().steps()
    file = io.BytesIO()
    torch.save({"model": before.model.state_dict(), "adam": before.optimizer.state_dict()}, file)
    after = Training()
    file.seek(0)
    loaded = torch.load(file)
    after.model.load_state_dict(loaded["model"])
    after.optimizer.load_state_dict(loaded["adam"])
    del before, loaded
    return {"file": digest(torch.load(io.BytesIO(file.getvalue()))), **after.steps().result()}


def swapped_storages() -> Result:
    """Weights exchange memory with their copies, as CUDA graph trees do with their outputs."""
    training = Training()
    for _ in range(STEPS):
        for weight in training.model[0].parameters():
            copied = weight.detach().clone()
            weight.untyped_storage()._swap_data_ptr_(copied.untyped_storage())
            copied.zero_()  # the memory that was the weight's
        training.steps(1)
    return training.result()


SCENARIOS: dict[str, Callable[[], Result]] = {
    program.__name__: program
    for program in (
        two_devices,
        replicas,
        side_stream,
        later_thread,
        parallel_threads,
        data_loader,
        switched_midway,
        gradient_penalty,
        custom_function,
        saved_and_loaded,
        swapped_storages,
    )
}
