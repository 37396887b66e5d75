"""Extensions that take addresses themselves.

Usage: extension.py lms|stock LIBRARY [TEST...]
"""

import sys

import torch
from harness import (
    TestCase,
    assert_same,
    is_held,
    lms,
    numbers,
    page_out,
    paged_out,
    raises,
    run_tests,
)

HEADERS = sys.argv.pop(1)
torch.ops.load_library(sys.argv.pop(1))
EXTENSION = getattr(torch.ops, f"addresses_{HEADERS}")

READS = [
    "data_ptr<float>", "data_ptr", "const_data_ptr<float>", "const_data_ptr",
    "mutable_data_ptr<float>", "mutable_data_ptr", "storage().data", "storage().mutable_data",
    "storage().data_ptr", "packed_accessor", "accessor",
]  # fmt: skip


def tensors() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Tensors whose address is not shown, with their data: paged out, resident, a view."""
    host = numbers(64)
    resident = host.cuda()
    parameter = torch.nn.Parameter(paged_out(host))
    view = paged_out(host)[16:32]
    out = paged_out(host)
    return [(out, host), (resident, host), (view, host[16:32]), (parameter.detach(), host)]


def expect_error(call: object, way: str) -> None:
    try:
        call()
    except RuntimeError as error:
        message = str(error)
        assert "Large Model Support" in message and "torch.cuda.lms.pin" in message, (way, message)
        return
    raise AssertionError(f"{way}: no error")


class Squared(torch.autograd.Function):
    """Its backward takes the addresses of what it saved and of what it makes."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        result = gradient * x * 2
        for tensor in (x, result):
            page_out(tensor)
            for way in READS:
                if HEADERS == "lms":
                    EXTENSION.read(tensor, way)
                else:
                    expect_error(lambda t=tensor, w=way: EXTENSION.read(t, w), way)
        return result


def backward_through_addresses(side: torch.cuda.Stream) -> None:
    x = numbers(64).cuda().requires_grad_()
    with torch.cuda.stream(side):
        y = Squared.apply(x + 1)
    torch.cuda.current_stream().wait_stream(side)
    y.sum().backward()
    gradient = x.grad
    torch.cuda.reclaim_inactive()
    for way in READS:
        if HEADERS == "stock":
            expect_error(lambda w=way: EXTENSION.read(gradient, w), way)
        else:
            assert EXTENSION.read(gradient, way) == (2 * (numbers(64) + 1)).tolist()
    assert_same(gradient, 2 * (numbers(64) + 1))


class TestExtension(TestCase):
    def test_addresses(self) -> None:
        for way in READS:
            for tensor, host in tensors():
                if HEADERS == "lms":
                    assert EXTENSION.read(tensor, way) == host.tolist(), way
                    assert is_held(tensor), f"{way}: the address escaped but the storage may move"
                else:
                    expect_error(lambda t=tensor, w=way: EXTENSION.read(t, w), way)
                assert_same(tensor, host)

    def test_writing(self) -> None:
        for way in ("data_ptr<float>", "data_ptr", "mutable_data_ptr", "storage().mutable_data"):
            tensor = paged_out(numbers(64))
            if HEADERS == "stock":
                expect_error(lambda t=tensor, w=way: EXTENSION.clear(t, w), way)
                with lms.pin(tensor):
                    EXTENSION.clear(tensor, way)
            else:
                EXTENSION.clear(tensor, way)
            torch.cuda.reclaim_inactive()
            assert_same(tensor, torch.zeros(64))

    def test_inside_pin(self) -> None:
        for way in READS:
            for tensor, host in tensors():
                with lms.pin(tensor):
                    assert EXTENSION.read(tensor, way) == host.tolist(), way
                    result = EXTENSION.make_twice(tensor, way)
                assert_same(result, host * 2)
                page_out(tensor)

    def test_operator_with_a_cuda_kernel(self) -> None:
        """LMS sees its arguments, and leaves alone what it allocates until it returns."""
        for way in READS:
            for tensor, host in tensors():
                page_out(tensor)
                result = EXTENSION.twice(tensor, way)
                page_out(result)
                assert_same(result, host * 2)
                assert not is_held(tensor), way

    def test_wrong_type_is_upstreams_error(self) -> None:
        tensor = paged_out(numbers(64).double())
        for way in ("data_ptr<float>", "const_data_ptr<float>", "mutable_data_ptr<float>"):
            raises(
                RuntimeError,
                lambda w=way: EXTENSION.read(tensor, w),
                "expected scalar type Float",
                "Double",
            )
        assert_same(tensor, numbers(64).double())

    def test_lms_off(self) -> None:
        torch.cuda.set_enabled_lms(False)
        tensor = numbers(64).cuda()
        for way in READS:
            assert EXTENSION.read(tensor, way) == numbers(64).tolist()
            assert_same(EXTENSION.make_twice(tensor, way), numbers(64) * 2)
        torch.cuda.set_enabled_lms(True)

    def test_data_ptr_that_does_not_fit(self) -> None:
        if HEADERS == "stock":
            return
        mib = 1 << 20
        torch.cuda.set_limit_lms(40 * mib)
        one, other = numbers(6 * mib).cuda(), numbers(6 * mib).cuda()
        assert EXTENSION.read(one[:5], "data_ptr") == [1, 2, 3, 4, 5]
        raises(
            torch.cuda.OutOfMemoryError, lambda: EXTENSION.read(other, "data_ptr"), "by addresses"
        )
        del one
        assert EXTENSION.read(other[:5], "data_ptr") == [1, 2, 3, 4, 5]
        torch.cuda.set_limit_lms(0)

    def test_last_with_several_streams(self) -> None:
        """Runs last, since it changes the process: gradients are unchecked then."""
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.ones(3, device="cuda").add_(1)
        side.synchronize()
        self.test_inside_pin()
        self.test_addresses()
        self.test_writing()
        backward_through_addresses(side)


if __name__ == "__main__":
    lms.set_enabled_lms(True)
    run_tests()
