"""Layouts, views and types of tensors."""

from __future__ import annotations

from collections.abc import Generator

import torch
from torch import Tensor

from features.common import COUNT, Result, Section, leaf, numbers

SECTION = feature = Section("Tensors of every kind")


@feature("Sparse: COO, with gradients", gpu="its kernels are not simulated")
def sparse_coo() -> Generator[None, None, Result]:
    indices = torch.randint(1024, (2, 100_000), generator=torch.Generator().manual_seed(1)).cuda()
    values = leaf(100_000)
    matrix = torch.sparse_coo_tensor(indices, values, (1024, 1024)).coalesce()
    yield
    product = torch.sparse.mm(matrix, numbers(1024, 256))
    yield
    product.square().sum().backward()
    return {"product": product, "gradient": values.grad, "dense": matrix.to_dense()}


@feature("Sparse: CSR", gpu="its kernels are not simulated")
def sparse_csr() -> Generator[None, None, Result]:
    matrix = numbers(1024, 1024).relu().to_sparse_csr()
    yield
    product = matrix @ numbers(1024, 256)
    yield
    return {"product": product, "dense": matrix.to_dense()}


@feature("Sparse: semi-structured", gpu="its kernels are not simulated")
def sparse_semi_structured() -> Generator[None, None, Result]:
    mask = torch.tensor([0, 0, 1, 1]).tile((256, 64)).cuda()
    weights = torch.sparse.to_sparse_semi_structured(numbers(256, 256, dtype=torch.half) * mask)
    yield
    y = torch.nn.functional.linear(numbers(128, 256, dtype=torch.half), weights)
    yield
    return {"y": y}


@feature("Nested tensors, jagged")
def nested() -> Generator[None, None, Result]:
    parts = [leaf(rows, 256, seed=rows) for rows in (100, 700, 300)]
    packed = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
    yield
    y = torch.nn.functional.gelu(packed * 2)
    yield
    y.values().sum().backward()
    return {"values": y.values(), "gradients": [part.grad for part in parts]}


@feature("Complex numbers, conjugate and negative views")
def complex_numbers() -> Generator[None, None, Result]:
    z = torch.view_as_complex(numbers(COUNT // 2, 2)).requires_grad_()
    view = z.conj()
    yield
    y = (view * z).imag + view.angle()
    yield
    y.sum().backward()
    return {"y": y, "view": view.resolve_conj(), "gradient": z.grad}


@feature("Quantised tensors", gpu="their kernels are not simulated")
def quantised() -> Generator[None, None, Result]:
    q = torch.quantize_per_tensor(numbers(), 0.05, 128, torch.quint8)
    yield
    values = q.int_repr().clone()
    yield
    return {"values": values, "back": q.dequantize()}


@feature("Half precision, bfloat16, 8-bit floats, integers, booleans")
def types() -> Generator[None, None, Result]:
    x = numbers()
    kinds = [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.bool]
    converted = [x.to(kind) for kind in kinds]
    yield
    return {"back": [y.to(torch.float32) for y in converted], "any": converted[-1].any()}


@feature("Views: of views, expanded, unfolded, overlapping `as_strided`")
def views() -> Generator[None, None, Result]:
    base = numbers(1024, 1024)
    window = base[100:900].t()[50:70]
    overlapping = base.as_strided((1000, 512), (1000, 1), 7)
    tiles = base.unfold(0, 16, 8)
    wide = base[:1].expand(1024, -1)
    yield
    window.mul_(3)
    base[3].zero_()
    yield
    return {"base": base, "views": [window, overlapping, tiles, wide]}


@feature("In-place operators on views in autograd's graph")
def in_place() -> Generator[None, None, Result]:
    x = leaf()
    y = x * 1
    y[::2].mul_(2)
    y[10:].sin_()
    yield
    y.clamp_(max=3)
    yield
    y.sum().backward()
    return {"y": y, "gradient": x.grad}


@feature("Memory formats: channels last, strided results")
def memory_formats() -> Generator[None, None, Result]:
    conv = torch.nn.Conv2d(8, 8, 3).cuda().to(memory_format=torch.channels_last)
    with torch.no_grad():
        conv.weight.copy_(numbers(8, 8, 3, 3, seed=3)), conv.bias.zero_()
    x = numbers(4, 8, 128, 128).to(memory_format=torch.channels_last).requires_grad_()
    yield
    y = conv(x)
    yield
    y.sum().backward()
    strides = torch.tensor([*y.stride(), *x.grad.stride()])
    return {"y": y, "gradients": [x.grad, conv.weight.grad], "strides": strides}


@feature("Named tensors")
def named() -> Generator[None, None, Result]:
    x = numbers(1024, 1024).refine_names("row", "column")
    yield
    y = x.align_to("column", "row").sum("row")
    yield
    return {"y": y.rename(None), "names": list(y.names)}


class Scaled(Tensor):
    """A subclass with an attribute of its own."""

    factor: float = 2.0


@feature("Subclasses of `Tensor` and of `Parameter`")
def subclasses() -> Generator[None, None, Result]:
    x = numbers().as_subclass(Scaled)
    x.factor = 3.0
    weight = torch.nn.Parameter(numbers(seed=2))
    yield
    y = x * weight
    yield
    y.sum().backward()
    return {"y": y.as_subclass(Tensor), "kind": type(y).__name__, "gradient": weight.grad}


@feature("`set_`, `data`, `resize_`, storages that grow and shrink")
def storages() -> Generator[None, None, Result]:
    x, other = numbers(), numbers(seed=2)
    yield
    x.untyped_storage().resize_(0)
    yield
    x.untyped_storage().resize_(4 * COUNT)
    x.copy_(other)
    view = torch.empty(0, device="cuda").set_(x.untyped_storage(), 5, (100,), (7,))
    parameter = torch.nn.Parameter(numbers(10))
    parameter.data = other
    yield
    return {"x": x, "view": view, "parameter": parameter}


@feature("Lazy clones")
def lazy_clones() -> Generator[None, None, Result]:
    x = numbers()
    clone = torch._lazy_clone(x)
    yield
    clone.add_(1)
    yield
    x.mul_(2)
    return {"x": x, "clone": clone}
