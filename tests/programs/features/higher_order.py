"""Operators that take functions: PyTorch's higher-order operators, called and in graphs."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_each
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from features.common import Result, Section, gradients, leaf, numbers, perceptron

SECTION = feature = Section("Compilers and custom operators")
SHAPE = (512, 512)


@feature("`torch.cond`, with gradients")
def condition() -> Generator[None, None, Result]:
    torch._dynamo.reset()

    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x, y: x.sin() * y, lambda x, y: x.cos() + y, (x, y))

    whole = torch.compile(function, backend="aot_eager")
    results, found = [], []
    for sign in (1, -1):
        x, y = leaf(*SHAPE), leaf(*SHAPE, seed=2)
        called = function(x.abs() * sign, y)
        yield
        compiled = whole(x.abs() * sign, y)
        yield
        (called.sum() + compiled.sum()).backward()
        results += [called, compiled]
        found += [x.grad, y.grad]
    return {"results": results, "gradients": found}


@feature("`while_loop`")
def loop() -> Generator[None, None, Result]:
    torch._dynamo.reset()

    def function(count: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return while_loop(
            lambda count, x: count > 0, lambda count, x: (count - 1, x.sin() @ x), (count, x)
        )

    count, x = torch.tensor(4, device="cuda"), numbers(*SHAPE) / 64
    called = function(count, x)
    yield
    compiled = torch.compile(function, backend="aot_eager")(count, x)
    yield
    return {"called": called, "compiled": compiled}


@feature("`scan`, `associative_scan`, `map`")
def scans() -> Generator[None, None, Result]:
    torch._dynamo.reset()
    x = numbers(8, *SHAPE)

    def both(start: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        last, each = scan(lambda carry, x: (carry + x.sin(), carry * x), start, x)
        return last, each, associative_scan(torch.mul, x, dim=0, combine_mode="generic")

    called = both(x[0].clone(), x)
    yield
    compiled = torch.compile(both, backend="aot_eager")(x[0].clone(), x)
    yield
    mapped = map_each(lambda row, y: row.sin() + y, x, x[1].clone())
    yield
    return {"called": called, "compiled": compiled, "mapped": mapped}


def attend(run: Callable[..., Any]) -> Generator[None, None, Result]:
    """Attention over the words before and a little behind, with a bias by distance."""
    queries, keys, values = (leaf(2, 4, 256, 64, seed=seed) for seed in range(3))

    def bias(score: Tensor, batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return score - (q - k).abs() * 0.01

    mask = create_block_mask(lambda b, h, q, k: q >= k - 8, None, None, 256, 256, device="cuda")
    yield
    found = run(queries, keys, values, score_mod=bias, block_mask=mask)
    yield
    found.square().mean().backward()
    yield
    return {"found": found, "gradients": [queries.grad, keys.grad, values.grad]}


@feature("`flex_attention`")
def flexible_attention() -> Generator[None, None, Result]:
    torch._dynamo.reset()
    return (yield from attend(flex_attention))


@feature("`flex_attention`, `torch.compile`, `aot_eager`")
def compiled_flexible_attention() -> Generator[None, None, Result]:
    torch._dynamo.reset()
    return (yield from attend(torch.compile(flex_attention, backend="aot_eager")))


@feature("Activation checkpointing under `torch.compile`, with dropout")
def compiled_checkpoint() -> Generator[None, None, Result]:
    torch._dynamo.reset()
    torch.cuda.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Dropout(0.2), perceptron()))

    @torch.compile(backend="aot_eager")
    def function(x: Tensor) -> Tensor:
        return checkpoint(model, checkpoint(model, x, use_reentrant=False), use_reentrant=False)

    x = leaf(*SHAPE)
    y = function(x)
    yield
    y.square().mean().backward()
    yield
    return {"y": y, "gradient": x.grad, "weights": gradients(model)}


@torch.library.custom_op("features::accumulate", mutates_args=("total", "count"))
def accumulate(total: Tensor, count: Tensor, x: Tensor) -> Tensor:
    total.add_(x)
    count.add_(1)
    return total.sin()


accumulate.register_fake(lambda total, count, x: torch.empty_like(x))


@feature("Custom operators that write their arguments, in graphs")
def functionalised() -> Generator[None, None, Result]:
    torch._dynamo.reset()

    @torch.compile(backend="aot_eager")
    def function(total: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        count = torch.zeros_like(x)
        y = accumulate(total, count, x)
        y = y + accumulate(total[:256], count[:256], y[:256]).sum()
        return y, count

    total = numbers(*SHAPE)
    results = []
    for seed in range(2):
        results.append(function(total, numbers(*SHAPE, seed=seed)))
        yield
    return {"total": total, "results": results}


@triton.jit
def double(x, y, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + at, tl.load(x + at, at < count) * 2, at < count)


@feature("Triton kernels in graphs: `wrap_triton`", triton=True)
def wrapped_kernels() -> Generator[None, None, Result]:
    torch._dynamo.reset()

    @torch.library.triton_op("features::double", mutates_args={})
    def doubled(x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), 1024),)
        torch.library.wrap_triton(double)[grid](x, y, x.numel(), block=1024)
        return y

    x = numbers(*SHAPE)
    called = doubled(x)
    yield
    compiled = torch.compile(lambda x: doubled(x.sin()).cos(), backend="aot_eager")(x)
    yield
    return {"called": called, "compiled": compiled}
