"""What Inductor compiles, beyond whole models: see tests/engine/test_compiled.py for these."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from functools import partial

import torch
import torch._inductor
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from features.common import Result, Section, gradients, leaf, numbers, perceptron

SECTION = feature = Section("Compilers and custom operators")
WIDTH = 128  # little for Triton's interpreter to compute


@feature("`torch.compile`, Inductor, dynamic shapes", triton=True)
def dynamic_shapes() -> Generator[None, None, Result]:
    torch._dynamo.reset()
    model = perceptron(WIDTH, layers=1)
    compiled = torch.compile(model, dynamic=True)
    results = []
    for length in (64, 50, 17):
        y = compiled(numbers(length, WIDTH))
        yield
        y.square().mean().backward()
        yield
        results.append(y)
    return {"results": results, "gradients": gradients(model)}


@feature("`torch.compile`, Inductor, around breaks of the graph", triton=True)
def broken_graphs() -> Generator[None, None, Result]:
    torch._dynamo.reset()

    @torch.compile
    def function(x: Tensor) -> Tensor:
        y = x.sin()
        total = y.sum().item()
        torch._dynamo.graph_break()
        return (y / total + x).cos()

    x = leaf(WIDTH, WIDTH)
    y = function(x)
    yield
    y.square().sum().backward()
    yield
    return {"y": y, "gradient": x.grad}


@feature('`torch.compile`, `mode="reduce-overhead"`', ratio=1.4, triton=True, graphs=True)
def replayed() -> Generator[None, None, Result]:
    """Runs once for itself, is captured the second time, and replayed then."""
    torch._dynamo.reset()
    model = perceptron(WIDTH, layers=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled = torch.compile(model, mode="reduce-overhead")
    results = []
    for seed in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        loss = compiled(numbers(WIDTH, WIDTH, seed=seed)).square().mean()
        yield
        loss.backward()
        yield
        optimizer.step()
        optimizer.zero_grad()
        results.append(loss)
    return {"losses": results, "weights": model.state_dict()}


@feature("Compiled autograd", triton=True)
def compiled_autograd() -> Generator[None, None, Result]:
    torch._dynamo.reset()
    model = perceptron(WIDTH, layers=1)

    def step(x: Tensor) -> Tensor:
        y = model(x)
        y.square().mean().backward()
        return y

    with torch._dynamo.config.patch(compiled_autograd=True):
        compiled = torch.compile(step)  # which looks at the setting
        results = []
        for seed in range(2):
            results.append(compiled(numbers(WIDTH, WIDTH, seed=seed)).detach())
            yield
    return {"results": results, "gradients": gradients(model)}


def save_products(_context: object, operator: object, *_: object, **__: object) -> CheckpointPolicy:
    """Products of matrices are saved, all else is computed again."""
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if operator in products else CheckpointPolicy.PREFER_RECOMPUTE


@feature("Selective activation checkpointing, with Inductor", triton=True)
def selective_checkpoint() -> Generator[None, None, Result]:
    torch._dynamo.reset()
    model = perceptron(WIDTH, layers=1)
    contexts = partial(create_selective_checkpoint_contexts, save_products)

    @torch.compile
    def function(x: Tensor) -> Tensor:
        return checkpoint(model, x, use_reentrant=False, context_fn=contexts).sin()

    x = leaf(WIDTH, WIDTH)
    y = function(x)
    yield
    y.square().mean().backward()
    yield
    return {"y": y, "gradient": x.grad, "weights": gradients(model)}


@contextlib.contextmanager
def tuning() -> Iterator[None]:
    """Inductor tunes, each time anew: not with deterministic algorithms, nor from its cache."""
    torch.use_deterministic_algorithms(False)
    try:
        with torch._inductor.config.patch(autotune_local_cache=False):
            yield
    finally:
        torch.use_deterministic_algorithms(True, warn_only=True)


@feature('`torch.compile`, `mode="max-autotune-no-cudagraphs"`', triton=True)
def tuned() -> Generator[None, None, Result]:
    torch._dynamo.reset()

    @torch.compile(mode="max-autotune-no-cudagraphs")
    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x @ y).sin()

    x, y = leaf(32, 32), leaf(32, 32, seed=2)
    with tuning():
        z = function(x, y)
        yield
        z.square().mean().backward()
        yield
    return {"z": z, "gradients": [x.grad, y.grad]}


@feature("`torch.compile(optimizer.step)`", triton=True)
def compiled_optimizer() -> Generator[None, None, Result]:
    torch._dynamo.reset()
    model = perceptron(WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1), capturable=True)
    step = torch.compile(optimizer.step)
    for seed in range(2):
        model(numbers(WIDTH, WIDTH, seed=seed)).square().mean().backward()
        yield
        step()
        optimizer.zero_grad()
        yield
    return {"weights": model.state_dict(), "state": optimizer.state_dict()}


@feature("`flex_attention`, `torch.compile`, Inductor", triton=True)
def tuned_flexible_attention() -> Generator[None, None, Result]:
    torch._dynamo.reset()
    queries, keys, values = (leaf(1, 2, 128, 16, seed=seed) for seed in range(3))
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 128, 128, device="cuda")
    yield
    found = torch.compile(flex_attention)(queries, keys, values, block_mask=mask)
    yield
    found.square().mean().backward()
    yield
    return {"found": found, "gradients": [queries.grad, keys.grad, values.grad]}


@triton.autotune([triton.Config({"block": block}) for block in (256, 512)], key=["count"])
@triton.jit
def add_one(x, y, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + at, tl.load(x + at, at < count) + 1, at < count)


@feature("Triton kernels with `triton.autotune`, alone and in compiled functions", triton=True)
def tuned_kernels() -> Generator[None, None, Result]:
    torch._dynamo.reset()

    def function(x: Tensor) -> Tensor:
        x = x.sin()
        y = torch.empty_like(x)
        add_one[lambda chosen: (triton.cdiv(x.numel(), chosen["block"]),)](x, y, x.numel())
        return y * x

    x = numbers(WIDTH, WIDTH)
    called = function(x)
    yield
    compiled = torch.compile(function)(x)
    yield
    return {"called": called, "compiled": compiled}
