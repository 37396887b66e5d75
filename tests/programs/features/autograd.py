"""Autograd: hooks, transforms, derivatives of derivatives."""

from __future__ import annotations

from collections.abc import Generator

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from features.common import Result, Section, gradients, leaf, numbers, perceptron

SECTION = feature = Section("Autograd")


@feature("Derivatives of derivatives")
def double_backward() -> Generator[None, None, Result]:
    x = leaf()
    (first,) = torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)
    yield
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    yield
    second.square().sum().backward()
    return {"first": first, "second": second, "third": x.grad}


@feature("Backward passes over one graph twice")
def retained_graph() -> Generator[None, None, Result]:
    x = leaf()
    y = (x.sin() * x.exp()).sum()
    yield
    y.backward(retain_graph=True)
    yield
    y.backward()
    return {"gradient": x.grad}


@feature("Hooks of tensors and of the accumulation of gradients")
def tensor_hooks() -> Generator[None, None, Result]:
    x, seen = leaf(), []
    x.register_hook(lambda gradient: gradient * 2)
    x.register_post_accumulate_grad_hook(lambda tensor: seen.append(tensor.grad + 1))
    y = x.exp()
    y.retain_grad()
    both = torch.autograd.graph.register_multi_grad_hook([x, y], lambda all: seen.extend(all))
    yield
    y.sum().backward()
    both.remove()  # a hook on the graph of what it holds would keep all of it alive
    return {"gradient": x.grad, "kept": y.grad, "seen": seen}


@feature("Hooks of modules, forward and backward")
def module_hooks() -> Generator[None, None, Result]:
    model, seen = perceptron(), []
    layer = model[2]
    layer.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 1.5,))
    layer.register_forward_hook(lambda module, inputs, output: output + 1)
    layer.register_full_backward_pre_hook(lambda module, gradient: (gradient[0] * 2,))
    layer.register_full_backward_hook(lambda module, before, after: seen.extend(before))
    y = model(numbers(512, 512))
    yield
    y.square().mean().backward()
    return {"gradients": gradients(model), "seen": seen}


@feature("`saved_tensors_hooks`")
def saved_tensors_hooks() -> Generator[None, None, Result]:
    x = leaf()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.to(torch.bfloat16), Tensor.float):
        y = (x.sin() * x.exp()).tanh()
    yield
    y.sum().backward()
    return {"gradient": x.grad}


@feature("`save_on_cpu` on top of LMS")
def save_on_cpu() -> Generator[None, None, Result]:
    model = perceptron()
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        y = model(numbers(512, 512))
    yield
    y.square().mean().backward()
    return {"gradients": gradients(model)}


@feature("Activation checkpointing, reentrant")
def reentrant_checkpoint() -> Generator[None, None, Result]:
    model = perceptron()
    y = checkpoint_sequential(model, 3, numbers(512, 512).requires_grad_(), use_reentrant=True)
    yield
    y.square().mean().backward()
    return {"gradients": gradients(model)}


@feature("Activation checkpointing, with early stop")
def checkpoint_with_early_stop() -> Generator[None, None, Result]:
    model, x = perceptron(), numbers(512, 512)
    for part in model:
        x = checkpoint(torch.nn.functional.dropout, part(x), 0.1, use_reentrant=False)
        yield
    x.square().mean().backward()
    return {"gradients": gradients(model)}


@feature("`torch.func`: `grad`, `vmap`, `jvp`, `functional_call`")
def function_transforms() -> Generator[None, None, Result]:
    model = perceptron()
    weights = dict(model.named_parameters())
    x = numbers(64, 512)

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, weights, (x,)).square().mean()

    whole = grad(loss)(weights, x)
    yield
    per_sample = vmap(grad(loss), in_dims=(None, 0))(weights, x[:8])
    yield
    value, tangent = jvp(lambda x: loss(weights, x), (x,), (torch.ones_like(x),))
    return {"whole": whole, "per_sample": per_sample, "value": value, "tangent": tangent}


@feature("`torch.func`: Jacobians and Hessians")
def jacobians() -> Generator[None, None, Result]:
    x, weight = numbers(512), numbers(512, 512, seed=2)
    jacobian = jacrev(lambda x: (weight @ x).tanh())(x)
    yield
    second = hessian(lambda x: (weight @ x).tanh().sum())(x)
    return {"jacobian": jacobian, "hessian": second}


@feature("Forward-mode derivatives")
def forward_mode() -> Generator[None, None, Result]:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(numbers(), numbers(seed=2))
        yield
        value, tangent = forward_ad.unpack_dual(dual.sin() * dual.exp())
        yield
        return {"value": value.clone(), "tangent": tangent.clone()}


class Cube(torch.autograd.Function):
    """Differentiable twice, in both modes and under vmap."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x * x

    @staticmethod
    def setup_context(
        ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor], output: Tensor
    ) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x * x * gradient


@feature("A custom `autograd.Function`, under `vmap` as well")
def custom_function() -> Generator[None, None, Result]:
    x = leaf(1024, 1024)
    y = Cube.apply(x)
    yield
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    yield
    first.sum().backward()
    return {"y": y, "second": x.grad, "each": vmap(Cube.apply)(x.detach())}


@feature("Anomaly detection")
def anomaly_detection() -> Generator[None, None, Result]:
    with torch.autograd.set_detect_anomaly(True):
        model = perceptron()
        y = model(numbers(512, 512))
        yield
        y.square().mean().backward()
    return {"gradients": gradients(model)}
