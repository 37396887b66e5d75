"""Compilers, exporters and operators that PyTorch does not come with."""

from __future__ import annotations

import io
from collections.abc import Generator

import torch
import torch._inductor
from torch import Tensor, fx

from features.common import Result, Section, gradients, leaf, numbers, perceptron

SECTION = feature = Section("Compilers and custom operators")
SHAPE = (512, 512)  # of inputs


@feature("`torch.compile`, `aot_eager`")
def compiled() -> Generator[None, None, Result]:
    torch._dynamo.reset()
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fast = torch.compile(model, backend="aot_eager")
    for seed in range(2):
        loss = fast(numbers(*SHAPE, seed=seed)).square().mean()
        yield
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield
    return {"weights": model.state_dict(), "loss": loss}


@feature("`torch.compile`, Inductor", triton=True)
def inductor() -> Generator[None, None, Result]:
    torch._dynamo.reset()
    model = torch.compile(perceptron())
    y = model(numbers(*SHAPE))
    yield
    y.square().mean().backward()
    yield
    return {"y": y, "gradients": gradients(model)}


@feature("`torch.compile`, `cudagraphs`")
def captured() -> Generator[None, None, Result]:
    torch._dynamo.reset()
    model = torch.compile(perceptron(), backend="cudagraphs")
    results = []
    for seed in range(4):
        with torch.no_grad():
            results.append(model(numbers(*SHAPE, seed=seed)).clone())
        yield
    return {"results": results}


@feature("`torch.compile` around breaks of the graph")
def compiled_in_parts() -> Generator[None, None, Result]:
    torch._dynamo.reset()

    @torch.compile(backend="aot_eager")
    def function(x: Tensor) -> Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y * x if y.sum().item() > 1e9 else y + x

    x = leaf()
    y = function(x)
    yield
    y.sum().backward()
    return {"y": y, "gradient": x.grad}


@torch.jit.script
def scripted(x: Tensor, weight: Tensor) -> Tensor:
    for _ in range(3):
        x = torch.tanh(x @ weight) + x
    return x


@feature("TorchScript, scripted and traced, saved and loaded")
def torchscript() -> Generator[None, None, Result]:
    model, x = perceptron(), leaf(*SHAPE)
    weight = numbers(*SHAPE, seed=2)
    with torch.jit.optimized_execution(False):  # which computes otherwise from the second call on
        y = scripted(x, weight)
    yield
    traced = torch.jit.trace(model, numbers(*SHAPE))
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    yield
    loaded = torch.jit.load(file)
    with torch.jit.optimized_execution(False):
        z = loaded(y)
    yield
    z.square().mean().backward()
    return {"y": y, "z": z, "gradient": x.grad, "weights": gradients(loaded)}


@feature("`torch.export`, saved and loaded")
def exported() -> Generator[None, None, Result]:
    model, x = perceptron(), numbers(*SHAPE)
    program = torch.export.export(model, (x,))
    yield
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    yield
    return {"here": program.module()(x), "loaded": torch.export.load(file).module()(x)}


@feature("`torch.fx`: traced and changed graphs")
def graphs() -> Generator[None, None, Result]:
    model = fx.symbolic_trace(perceptron())
    (node,) = (node for node in model.graph.nodes if node.target == "1")
    with model.graph.inserting_after(node):
        doubled = model.graph.call_function(torch.mul, (node, 2.0))
    node.replace_all_uses_with(doubled, lambda user: user is not doubled)
    model.recompile()
    x = leaf(*SHAPE)
    y = model(x)
    yield
    y.sum().backward()
    return {"y": y, "gradient": x.grad}


@torch.library.custom_op("features::axpy", mutates_args=())
def axpy(a: float, x: Tensor, y: Tensor) -> Tensor:
    return a * x + y


@torch.library.custom_op("features::scale_", mutates_args=("x",))
def scale_(x: Tensor, factor: float) -> None:
    x.mul_(factor)


axpy.register_fake(lambda a, x, y: torch.empty_like(x))
axpy.register_autograd(
    lambda ctx, gradient: (None, gradient * ctx.a, gradient),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "a", inputs[0]),
)
axpy.register_vmap(lambda info, dims, a, x, y: (axpy(a, x, y), dims[1]))


@feature("`torch.library`: operators written in Python, in graphs and under `vmap`")
def custom_operators() -> Generator[None, None, Result]:
    torch._dynamo.reset()
    x, y = leaf(1024, 1024), leaf(1024, 1024, seed=2)
    z = axpy(2.5, x, y)
    yield
    scale_(z.data, 3.0)
    whole = torch.compile(lambda x, y: axpy(0.5, x, y).sin(), backend="aot_eager")(x, y)
    yield
    (z.sum() + whole.sum()).backward()
    each = torch.vmap(lambda x, y: axpy(1.5, x, y))(x.detach(), y.detach())
    return {"z": z, "whole": whole, "each": each, "gradients": [x.grad, y.grad]}


@feature("`opcheck`")
def operator_checks() -> Generator[None, None, Result]:
    arguments = (2.0, leaf(8, 8), leaf(8, 8, seed=2))
    yield
    return {"checks": torch.library.opcheck(axpy, arguments)}
