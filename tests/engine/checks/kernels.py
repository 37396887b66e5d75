"""Inductor's kernels, which are operators: what is written by them is made again.

Usage: kernels.py [TEST...]

Under chaos all that can be made again is dropped after the kernel that wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from harness import TestCase, assert_same, lms, numbers, run_tests
from launches import add_to
from torch._inductor.runtime import triton_heuristics
from torch.nn import functional


def data(*shape: int) -> torch.Tensor:
    return numbers(*shape) / 64


def made() -> int:
    return lms.stats()["lms.recompute.count"]


@contextmanager
def quiet() -> Iterator[None]:
    """In it nothing leaves the device."""
    torch.ops.lms.set_chaos(False)
    yield
    torch.ops.lms.set_chaos(True)


def compiled(function: Callable[..., Any], *arguments: torch.Tensor) -> Callable[..., Any]:
    """Its kernels are tuned, and operators, by the time that it is returned."""
    result = torch.compile(function)
    result(*(argument.clone() for argument in arguments))
    return result


def schemas() -> list[Any]:
    names = [one for one in torch._C._dispatch_get_all_op_names() if ".lms" in one]
    return [torch._C._get_schema(*name.split(".")) for name in names]


def operators(name: str) -> list[str]:
    """Those of kernels with the name."""
    return [one for one in torch._C._dispatch_get_all_op_names() if f"triton::{name}" in one]


class TestKernels(TestCase):
    def setUp(self) -> None:
        super().setUp()
        torch._dynamo.reset()

    def expect_the_same(self, function: Callable[..., Any], *hosts: torch.Tensor) -> int:
        """As where nothing moves; how many were made again."""
        arguments = [host.cuda() for host in hosts]
        run = compiled(function, *arguments)
        with quiet():
            expected = run(*(argument.clone() for argument in arguments))
        before = made()
        results = run(*arguments)
        for result, other in zip(results, expected):
            assert_same(result, other)
        return made() - before

    def test_pointwise(self) -> None:
        assert self.expect_the_same(lambda x, y: (x * y + x.sin(),), data(64, 64), data(64)) == 1

    def test_several_results(self) -> None:
        def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            z = torch.nn.functional.layer_norm(x, x.shape[-1:])
            return z, z.exp(), z.sum(1)

        assert self.expect_the_same(function, data(64, 64)) == 3

    def test_on_the_result_of_an_operator(self) -> None:
        """It changes what an "out=" has made."""

        def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return ((x @ y).tanh(),)

        assert self.expect_the_same(function, data(64, 64), data(64, 64)) >= 1

    def test_parts_of_a_result(self) -> None:
        """Several kernels write to the same memory, each to a part."""

        def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (torch.cat([(x @ y).softmax(0), y.cumsum(0).exp(), x.sum(0, keepdim=True)]),)

        assert self.expect_the_same(function, data(32, 32), data(32, 32)) >= 1

    def test_what_was_there_is_kept(self) -> None:
        """An argument that the kernel changes in part has bytes from before."""

        def change(x: torch.Tensor, y: torch.Tensor) -> None:
            x[:8] = y * 3

        with tuners() as found:
            compiled(change, data(64, 64).cuda(), data(64).cuda())
        (tuner,) = found
        y = data(64).cuda()
        torch.ops.lms.pause_adoption()  # so that nobody sees who writes to it
        x = data(64, 64).cuda()
        torch.ops.lms.resume_adoption()
        stream = torch.cuda.current_stream().cuda_stream
        tuner.run(y, x, 8 * 64, stream=stream)
        others = [torch.full((64, 64), 9.0, device="cuda") for _ in range(4)]  # where it was
        expected = data(64, 64)
        change(expected, data(64))
        assert_same(x, expected)
        del others

    def test_a_kernel_on_more_than_the_device_has(self) -> None:
        """As an optimizer's step, which is one kernel for many parameters."""

        def step(*parameters: torch.Tensor) -> None:
            torch._foreach_add_(parameters, 1)

        parameters = [torch.full((8 << 20,), float(n), device="cuda") for n in range(10)]
        torch.cuda.set_limit_lms(256 << 20)
        with self.assertRaisesRegex(torch.OutOfMemoryError, "leave an optimizer's step uncompiled"):
            torch.compile(step)(*parameters)
        torch.cuda.set_limit_lms(0)
        assert lms.stats()["pinned_bytes.all.current"] == 0
        for n, parameter in enumerate(parameters):
            assert parameter.eq(n).all()

    def test_a_kernel_on_many_tensors(self) -> None:
        def step(*tensors: torch.Tensor) -> None:
            torch._foreach_add_(tensors[:40], tensors[40:])

        tensors = [torch.full((64,), float(n), device="cuda") for n in range(80)]
        compiled(step, *tensors)(*tensors)
        assert [tensor[5].item() for tensor in tensors[:40]] == [2 * n + 40 for n in range(40)]

    def test_what_it_has_made_itself_in_the_same_memory(self) -> None:
        def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            sum_ = x * weight + bias + functional.dropout(y, 0.1)
            return functional.layer_norm(sum_, (64,), weight, bias).sin()

        weight, bias = (data(64).cuda().requires_grad_() for _ in range(2))
        x, y = (data(32, 64).cuda().requires_grad_() for _ in range(2))
        run = torch.compile(function)
        gradients = []
        for chaos in (False, False, True):
            torch.ops.lms.set_chaos(chaos)
            torch.manual_seed(0)
            gradients.append(torch.autograd.grad(run(x, y).square().sum(), (x, y, weight, bias)))
        assert "out_ptr_in_out_ptr0" in "".join(map(str, schemas())), "no kernel is of that kind"
        for result, expected in zip(*gradients[1:]):
            assert_same(result, expected)

    def test_sums_in_any_order(self) -> None:
        """Atomic additions give other bits each time, so it does not run again."""

        def function(x: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (torch.zeros(8, 64, device="cuda").index_add_(0, rows, x),)

        x, rows = data(64, 64).cuda(), (numbers(64, dtype=torch.int64) % 8).cuda()
        with tuners() as found:
            result = compiled(function, x, rows)(x, rows)[0]
        adding = [tuner for tuner in found if "atomic" in tuner.fn.src]
        assert adding, "no kernel adds atomically"
        for tuner in adding:
            assert "lms_pure" not in "".join(operators(tuner.fn.__name__ + "."))
        expected = torch.zeros(8, 64).index_add_(0, rows.cpu(), x.cpu())
        before = made()
        torch.testing.assert_close(result.cpu(), expected)
        assert made() == before

    def test_a_kernel_of_the_user(self) -> None:
        """In a graph it is an operator, and as nobody knows what it does, does not run again."""

        def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            z = x.clone()
            add_to[(4,)](z, y, z.numel(), block=1024)
            return (z,)

        x, y = data(64, 64), data(64, 64)
        with torch._inductor.config.patch(static_launch_user_defined_triton_kernels=True):
            run = compiled(function, x.cuda(), y.cuda())
        assert operators("add_to.lms") and not operators("add_to.lms_pure")
        result = run(x.cuda(), y.cuda())[0]
        before = made()
        assert_same(result, x + y)
        assert made() == before

    def test_numbers(self) -> None:
        """Lengths that change are arguments of the kernel."""

        def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (x * x.shape[0] + 0.5,)

        run = torch.compile(function, dynamic=True)
        for length in (60, 61, 62, 63):
            x = data(length, 8)
            before = made()
            assert_same(run(x.cuda())[0], function(x)[0])
        assert made() == before + 1

    def test_the_bits_are_compared(self) -> None:
        def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            z = torch.nn.functional.gelu(x @ y)
            return z, torch.nn.functional.layer_norm(z, z.shape[-1:]), (z @ y).sum(0)

        torch.ops.lms.set_verify(True)
        before = torch.ops.lms.compared()
        self.expect_the_same(function, data(64, 64), data(64, 64))
        torch.ops.lms.set_verify(False)
        assert torch.ops.lms.compared() > before
        assert torch.ops.lms.differing() == []

    def test_another_stream(self) -> None:
        def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (x * 2,)

        x = data(64, 64).cuda()
        run = compiled(function, x)
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            result = run(x)[0].neg()
        assert_same(result, data(64, 64) * -2)


@contextmanager
def tuners() -> Iterator[list[Any]]:
    """All of Inductor's that launch in it; other processes may have made them."""
    found: list[Any] = []
    run = triton_heuristics.CachingAutotuner.run

    def note(self: Any, *args: Any, **kwargs: Any) -> Any:
        found.append(self)
        return run(self, *args, **kwargs)

    triton_heuristics.CachingAutotuner.run = note
    yield found
    triton_heuristics.CachingAutotuner.run = run


if __name__ == "__main__":
    torch.cuda.set_enabled_lms(True)
    torch.ops.lms.set_chaos(True)
    run_tests()
