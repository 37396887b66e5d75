"""Kernels that test_triton.py launches: Triton needs them in a file."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scaled(x, factor):
    return x * factor


@triton.jit
def add_scaled(x, y, out, factor, count, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < count
    total = tl.load(x + at, inside) + scaled(tl.load(y + at, inside), factor)
    tl.store(out + at, total, inside)


@triton.autotune([triton.Config({"block": block}) for block in (64, 1024, 256)], key=["count"])
@triton.jit
def row_sums(x, out, count, block: tl.constexpr):
    row = tl.program_id(0)
    total = 0.0
    for start in range(0, count, block):
        at = start + tl.arange(0, block)
        total += tl.sum(tl.load(x + row * count + at, at < count, 0.0))
    tl.store(out + row, total)


@triton.jit
def product(x, y, out, block: tl.constexpr):
    at = tl.arange(0, block)[:, None] * block + tl.arange(0, block)[None, :]
    tl.store(out + at, tl.dot(tl.load(x + at), tl.load(y + at)))


@triton.jit
def increment(x):
    tl.store(x, tl.load(x) + 1)
