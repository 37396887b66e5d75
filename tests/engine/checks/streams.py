"""Gradients that the autograd engine hands from one stream to another."""

import threading
from collections.abc import Callable

import torch
from harness import TestCase, assert_same, lms, numbers, run_tests

COUNT = 1000  # elements
SIDE = torch.cuda.Stream()

Forward = Callable[[torch.Tensor], torch.Tensor]


def on_side(function: Forward) -> Forward:
    """The function on the side stream, which its backward then runs on as well."""

    def call(x: torch.Tensor) -> torch.Tensor:
        SIDE.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(SIDE):
            y = function(x)
        torch.cuda.current_stream().wait_stream(SIDE)
        return y

    return call


def expect_gradient(forward: Forward, factor: float, root: torch.Tensor | None = None) -> None:
    """The gradient of `forward` is `factor` everywhere, however often it is asked for."""
    for _ in range(2):
        x = numbers(COUNT).cuda().requires_grad_()
        y = forward(x)
        y.backward(torch.ones_like(y) if root is None else root)
        SIDE.synchronize()
        assert_same(x.grad, torch.full((COUNT,), float(factor)))


class Scaled(torch.autograd.Function):
    """Computes its gradient in the forward pass and hands out what it saved."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(torch.full_like(x, 3))
        return x * 3

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, _gradient: torch.Tensor) -> torch.Tensor:
        return ctx.saved_tensors[0]


class TestStreams(TestCase):
    def test_one_crossing(self) -> None:
        expect_gradient(lambda x: on_side(lambda t: t * 2)(x) * 3, 6)

    def test_crossing_to_and_fro(self) -> None:
        double = on_side(lambda t: t * 2)
        expect_gradient(lambda x: double(double(x) * 3) + double(x), 14)

    def test_views_of_a_gradient(self) -> None:
        def forward(x: torch.Tensor) -> torch.Tensor:
            first, second = on_side(lambda t: (t * 2).view(2, -1))(x).unbind()
            return on_side(lambda t: torch.cat(t.chunk(5)))(torch.cat([first, second]))

        expect_gradient(forward, 2)

    def test_roots(self) -> None:
        double = on_side(lambda t: t * 2)
        expect_gradient(double, 2)
        expect_gradient(double, 10, root=torch.full((COUNT,), 5.0).cuda())
        root = torch.full((COUNT,), 5.0, dtype=torch.float64).cuda()  # the engine converts it
        expect_gradient(double, 10, root=root)
        root = torch.full((1,), 5.0).cuda().expand(COUNT)
        expect_gradient(double, 10, root=root)

    def test_saved_tensor_as_gradient(self) -> None:
        expect_gradient(lambda x: on_side(Scaled.apply)(x * 2) * 1, 6)
        expect_gradient(lambda x: Scaled.apply(on_side(lambda t: t * 2)(x)), 6)

    def test_hooks_that_replace_gradients(self) -> None:
        def forward(x: torch.Tensor) -> torch.Tensor:
            y = on_side(lambda t: t * 2)(x)
            y.register_hook(lambda g: g * 5)
            y.grad_fn.register_hook(lambda inputs, _outputs: (inputs[0] * 7, *inputs[1:]))
            return y * 1

        expect_gradient(forward, 70)

    def test_reentrant_backward(self) -> None:
        def forward(x: torch.Tensor) -> torch.Tensor:
            body = on_side(lambda t: t * 2 * torch.ones_like(t))
            return torch.utils.checkpoint.checkpoint(body, x * 1, use_reentrant=True) * 3

        expect_gradient(forward, 6)

    def test_gradient_of_gradient(self) -> None:
        x = numbers(COUNT).cuda().requires_grad_()
        y = on_side(lambda t: t * t * t)(x)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((first * 2).sum(), x)
        SIDE.synchronize()
        assert_same(second, 12 * numbers(COUNT))

    def test_two_passes_at_once(self) -> None:
        """A pass that ends does not end the other one's."""
        errors: list[BaseException] = []

        def work() -> None:
            try:
                for _ in range(20):
                    self.test_one_crossing()
                    self.test_saved_tensor_as_gradient()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors


if __name__ == "__main__":
    lms.set_enabled_lms(True)
    run_tests()
