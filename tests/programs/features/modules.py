"""Modules and optimizers: what training programs put together."""

from __future__ import annotations

import copy
import io
import tempfile
from collections.abc import Generator

import torch
from torch import Tensor, nn
from torch.distributed import checkpoint as distributed_checkpoint
from torch.nn.utils import clip_grad_norm_, parametrizations, parametrize, prune, stateless
from torch.optim.swa_utils import AveragedModel

from features.common import Result, Section, gradients, numbers, perceptron

SECTION = feature = Section("Modules and optimizers")
SHAPE = (512, 512)  # of inputs


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int = 1) -> None:
    optimizer.zero_grad()
    model(numbers(*SHAPE, seed=seed)).square().mean().backward()
    optimizer.step()


@feature("Gradient scaling that skips steps, and clipping")
def gradient_scaling() -> Generator[None, None, Result]:
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40)
    scales = []
    for seed in range(3):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(numbers(*SHAPE, seed=seed)).float().square().mean()
        yield
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
    return {"weights": model.state_dict(), "scales": scales}


@feature("Every optimizer of `torch.optim`")
def optimizers() -> Generator[None, None, Result]:
    names = ["Adadelta", "Adagrad", "Adam", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"]
    weights = {}
    for name in [*names, "SGD"]:
        model = perceptron(256, 2)
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-3)
        for seed in range(2):
            model(numbers(256, 256, seed=seed)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        yield
        weights[name] = model.state_dict()
    return weights


@feature("L-BFGS")
def lbfgs() -> Generator[None, None, Result]:
    model = perceptron(layers=1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(numbers(*SHAPE)).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
        yield
    return {"weights": model.state_dict()}


@feature("Optimizer steps inside of the backward pass")
def step_in_backward() -> Generator[None, None, Result]:
    model = perceptron()
    for parameter in model.parameters():
        own = torch.optim.AdamW([parameter], lr=1e-3)

        def update(leaf: Tensor, own: torch.optim.Optimizer = own) -> None:
            own.step()
            own.zero_grad()

        parameter.register_post_accumulate_grad_hook(update)
    for seed in range(2):
        loss = model(numbers(*SHAPE, seed=seed)).square().mean()
        yield
        loss.backward()
    return {"weights": model.state_dict()}


@feature("Parametrizations: weight norm, spectral norm, orthogonal")
def parametrized() -> Generator[None, None, Result]:
    model = perceptron()
    parametrizations.weight_norm(model[0])
    parametrizations.spectral_norm(model[2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    yield
    for _ in range(2):
        step(model, optimizer)
        yield
    parametrize.remove_parametrizations(model[2], "weight")
    return {"weights": model.state_dict(), "output": model(numbers(*SHAPE))}


@feature("Pruning")
def pruned() -> Generator[None, None, Result]:
    model = perceptron()
    prune.l1_unstructured(model[0], "weight", amount=0.3)
    prune.ln_structured(model[2], "weight", amount=0.2, n=2, dim=0)
    yield
    step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    prune.remove(model[0], "weight")
    yield
    return {"weights": model.state_dict()}


@feature("Averages of weights, learning rate schedules")
def averages() -> Generator[None, None, Result]:
    model = perceptron()
    average = AveragedModel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, amsgrad=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=4)
    for seed in range(3):
        step(model, optimizer, seed)
        schedule.step()
        average.update_parameters(model)
        yield
    return {"weights": model.state_dict(), "average": average.state_dict()}


@feature("Copies of modules, moves to the host and back, other types")
def copied_modules() -> Generator[None, None, Result]:
    model = perceptron()
    twin = copy.deepcopy(model)
    yield
    half = copy.deepcopy(model).half()
    twin = twin.cpu().cuda().double()
    yield
    model.load_state_dict(twin.float().state_dict(), assign=True)
    with stateless._reparametrize_module(model, {"0.bias": numbers(512)}):
        output = model(numbers(*SHAPE))
    return {"half": half.state_dict(), "model": model.state_dict(), "output": output}


@feature("`torch.save` and `torch.load`, onto the device and the host")
def saved() -> Generator[None, None, Result]:
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step(model, optimizer)
    file = io.BytesIO()
    yield
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    yield
    restored = []
    for place in ("cuda", "cpu"):
        file.seek(0)
        restored.append(torch.load(file, map_location=place))
    model.load_state_dict(restored[0]["model"])
    step(model, optimizer)
    return {"file": file.getvalue(), "restored": restored, "gradients": gradients(model)}


@feature("`torch.distributed.checkpoint`")
def distributed_checkpoints() -> Generator[None, None, Result]:
    model, other = perceptron(), perceptron(layers=3)
    step(model, torch.optim.SGD(model.parameters(), lr=0.5))
    state = other.state_dict()
    with tempfile.TemporaryDirectory() as folder:
        yield
        distributed_checkpoint.save(model.state_dict(), checkpoint_id=folder, no_dist=True)
        yield
        distributed_checkpoint.load(state, checkpoint_id=folder, no_dist=True)
    return {"saved": model.state_dict(), "loaded": state}
