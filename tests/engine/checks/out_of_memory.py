"""Out of memory: the error says what to do, nothing is lost, and the program goes on."""

# ruff: noqa: F821 - it takes names that a lambda reads and that are deleted later for undefined

import threading

import torch
from harness import (
    TestCase,
    assert_same,
    is_held,
    lms,
    numbers,
    page_out,
    raises,
    run_tests,
    skip_without_second_device,
)
from torch import nn

MIB = 1 << 20
LIMIT = 64 * MIB


def assert_explains(message: str) -> None:
    for words in (
        "Tried to allocate", "limit 64.00 MiB", "pinned", "reclaimable", "on the host",
        "smaller batch", "set_limit_lms", "set_host_limit", "data_ptr()",
        "in pieces of at most", "reclaim_inactive()",
    ):  # fmt: skip
        assert words in message, f"{words!r} is not in: {message}"


class Witnesses:
    """Tensors of all kinds that must keep their data through what a check does."""

    def __init__(self) -> None:
        base = numbers(MIB + 20)
        self.hosts = [base[i : i + MIB] for i in range(20)]  # 80 MiB
        self.tensors = [host.cuda() for host in self.hosts]
        page_out(*self.tensors[:8])

    def check(self) -> None:
        for tensor, host in zip(self.tensors, self.hosts, strict=True):
            assert_same(tensor, host)
        for tensor, host in zip(self.tensors, self.hosts, strict=True):
            assert_same((tensor + 1)[-5:], host[-5:] + 1)
        assert torch.cuda.memory_reserved() <= LIMIT
        stats = lms.stats()
        assert stats["pinned_bytes.all.current"] == 0, "a pin was left behind"
        assert not any(is_held(tensor) for tensor in self.tensors)


class Wide(nn.Module):
    """Its activations grow with the batch; one of 1,500 rows does not fit as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 4096), nn.Linear(4096, 64)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[1](self.layers[0](x).relu())


def step(model: nn.Module, rows: int) -> None:
    loss = model(torch.ones(rows, 64, device="cuda") / 64).square().mean()
    loss.backward()


class FailsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        torch.empty(20 * MIB, device="cuda")
        return grad


class TestOutOfMemory(TestCase):
    def test_one_result_larger_than_the_limit(self) -> None:
        witnesses = Witnesses()
        for _ in range(2):
            message = raises(
                torch.cuda.OutOfMemoryError, lambda: torch.empty(20 * MIB, device="cuda")
            )
            assert_explains(message)
        witnesses.check()

    def test_tensors_of_one_operator_larger_than_the_limit(self) -> None:
        witnesses = Witnesses()
        one, other = numbers(8 * MIB).cuda(), numbers(8 * MIB).cuda()  # 32 MiB each, and a result
        message = raises(torch.cuda.OutOfMemoryError, lambda: one + other)
        assert_explains(message)
        assert_same(one.add_(0), numbers(8 * MIB))
        half = one[: 2 * MIB].clone() + other[: 2 * MIB].clone()  # a smaller batch succeeds
        assert_same(half, numbers(8 * MIB)[: 2 * MIB] * 2)
        del one, other, half
        witnesses.check()

    def test_three_arguments_that_do_not_fit(self) -> None:
        witnesses = Witnesses()
        tensors = [numbers(6 * MIB).cuda() for _ in range(3)]  # 24 MiB each
        assert_explains(
            raises(torch.cuda.OutOfMemoryError, lambda: torch.addcmul(*tensors, out=tensors[0]))
        )
        for tensor in tensors:
            assert_same(tensor, numbers(6 * MIB))
        del tensors, tensor
        witnesses.check()

    def test_while_another_thread_is_at_work(self) -> None:
        """What it gives back is no reason to hope for ever."""
        witnesses = Witnesses()
        tensors = [numbers(2 * MIB).cuda() for _ in range(6)]
        is_over = threading.Event()

        def work() -> None:
            while not is_over.is_set():
                for tensor in tensors:
                    tensor += 1
                    tensor -= 1

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(2):
                assert_explains(
                    raises(
                        torch.cuda.OutOfMemoryError, lambda: torch.empty(20 * MIB, device="cuda")
                    )
                )
        finally:
            is_over.set()
            thread.join()
        for tensor in tensors:
            assert_same(tensor, numbers(2 * MIB))
        del tensors, tensor
        witnesses.check()

    def test_a_private_pool_gets_memory(self) -> None:
        witnesses = Witnesses()
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            apart = numbers(2 * MIB).cuda()
        assert_same(apart + 1, numbers(2 * MIB) + 1)
        del apart, pool
        witnesses.check()

    def test_held_memory_is_named(self) -> None:
        witnesses = Witnesses()
        held = numbers(10 * MIB).cuda()
        held.data_ptr()
        message = raises(torch.cuda.OutOfMemoryError, lambda: torch.empty(8 * MIB, device="cuda"))
        assert_explains(message)
        assert "40.00 MiB of it by addresses" in message, message
        assert_same(held, numbers(10 * MIB))
        del held
        torch.empty(8 * MIB, device="cuda")
        witnesses.check()

    def test_host_memory_spent(self) -> None:
        torch.cuda.set_enabled_lms(False)  # gives the host memory of other checks back
        torch.cuda.set_enabled_lms(True)
        witnesses = Witnesses()
        torch.cuda.reclaim_inactive()
        lms.set_host_limit(lms.stats()["lms.host_bytes.reserved"])
        hosts = [torch.full((2 * MIB,), float(i)) for i in range(30)]
        tensors: list[torch.Tensor] = []

        def fill() -> None:
            for host in hosts[len(tensors) :]:
                tensors.append(host.cuda())

        message = raises(torch.cuda.OutOfMemoryError, fill)
        assert_explains(message)
        assert "host memory" in message and "spent" in message, message
        del tensors[-3:]  # room to move the others
        for tensor, host in zip(tensors, hosts, strict=False):
            assert_same(tensor, host)
        lms.set_host_limit(0)
        fill()
        for tensor, host in zip(tensors, hosts, strict=True):
            assert_same(tensor, host)
        del tensors, tensor
        witnesses.check()

    def test_host_limit_smaller_than_anything(self) -> None:
        torch.cuda.set_enabled_lms(False)  # gives the host memory back
        torch.cuda.set_enabled_lms(True)
        lms.set_host_limit(1)
        tensors = [numbers(2 * MIB).cuda() + i for i in range(5)]  # 40 MiB, fits
        torch.cuda.reclaim_inactive()
        assert all(lms.is_resident(tensor) for tensor in tensors)
        message = raises(
            torch.cuda.OutOfMemoryError,
            lambda: [torch.empty(8 * MIB, device="cuda") for _ in range(2)],
        )
        assert_explains(message)
        for i, tensor in enumerate(tensors):
            assert_same(tensor, numbers(2 * MIB) + i)
        lms.set_host_limit(0)
        torch.empty(12 * MIB, device="cuda")
        for i, tensor in enumerate(tensors):
            assert_same(tensor, numbers(2 * MIB) + i)

    def test_forward_then_smaller_batch(self) -> None:
        torch.manual_seed(0)
        model = Wide().cuda()
        expected = [parameter.detach().cpu() for parameter in model.parameters()]
        witnesses = Witnesses()
        for _ in range(2):
            assert_explains(raises(torch.cuda.OutOfMemoryError, lambda: step(model, 5000)))
        step(model, 100)
        for parameter, value in zip(model.parameters(), expected, strict=True):
            assert_same(parameter, value)
            assert torch.isfinite(parameter.grad).all()
        witnesses.check()

    def test_in_backward(self) -> None:
        torch.manual_seed(0)
        model = Wide().cuda()
        witnesses = Witnesses()

        def fails() -> None:
            out = model(torch.ones(50, 64, device="cuda") / 64)
            FailsInBackward.apply(out).sum().backward()

        for _ in range(2):
            assert_explains(raises(torch.cuda.OutOfMemoryError, fails))
        model.zero_grad()
        step(model, 50)
        gradient = model.layers[0].weight.grad.cpu()
        model.zero_grad()
        step(model, 50)
        assert_same(model.layers[0].weight.grad, gradient)
        witnesses.check()

    def test_in_a_list_operator(self) -> None:
        witnesses = Witnesses()
        tensors = [torch.full((9 * MIB,), float(i), device="cuda") for i in range(3)]  # 36 MiB each
        grads = [torch.ones(9 * MIB, device="cuda") for _ in range(3)]
        assert_explains(
            raises(torch.cuda.OutOfMemoryError, lambda: torch._foreach_add_(tensors, grads))
        )
        for i, tensor in enumerate(tensors):
            value = tensor[0].item()
            assert value in (i, i + 1.0) and bool((tensor.cpu() == value).all()), (
                "half an operator ran"
            )
        del tensors, grads, tensor
        witnesses.check()

    def test_list_operators_where_little_is_free(self) -> None:
        lms.set_limit_lms(200 * MIB)
        try:
            held = torch.ones(44 * MIB, device="cuda")  # 176 MiB
            held.data_ptr()
            tensors = [torch.full((300_000,), float(i), device="cuda") for i in range(40)]
            grads = [torch.ones(300_000, device="cuda") for _ in tensors]
            torch._foreach_add_(tensors, grads)  # an eighth of the limit would not fit
            for i, tensor in enumerate(tensors):
                assert_same(tensor, torch.full((300_000,), i + 1.0))
            del held, tensors, grads, tensor
        finally:
            lms.set_limit_lms(LIMIT)

    def test_in_a_copy_from_the_host(self) -> None:
        witnesses = Witnesses()
        assert_explains(raises(torch.cuda.OutOfMemoryError, lambda: numbers(17 * MIB).cuda()))
        assert_explains(
            raises(torch.cuda.OutOfMemoryError, lambda: numbers(8 * MIB).cuda().double())
        )
        witnesses.check()

    def test_in_resize(self) -> None:
        witnesses = Witnesses()
        tensor = numbers(MIB).cuda()
        assert_explains(raises(torch.cuda.OutOfMemoryError, lambda: tensor.resize_(20 * MIB)))
        storage = tensor.untyped_storage()
        assert_explains(raises(torch.cuda.OutOfMemoryError, lambda: storage.resize_(80 * MIB)))
        assert_same(tensor.view(-1)[:MIB], numbers(MIB))
        del tensor, storage
        witnesses.check()

    def test_hold_that_does_not_fit(self) -> None:
        witnesses = Witnesses()
        held = [numbers(6 * MIB).cuda() for _ in range(3)]
        torch.cuda.reclaim_inactive()
        held[0].data_ptr()
        held[1].data_ptr()
        torch.cuda.reclaim_inactive()
        assert_explains(raises(torch.cuda.OutOfMemoryError, lambda: held[2].data_ptr()))
        assert_same(held[1], numbers(6 * MIB))
        del held[0]
        assert held[1].data_ptr() != 0
        assert_same(held[1], numbers(6 * MIB))
        del held
        witnesses.check()

    def test_on_the_second_device(self) -> None:
        skip_without_second_device()
        witnesses = Witnesses()
        with torch.cuda.device(1):
            tensor = numbers(8 * MIB).cuda()
            message = raises(torch.cuda.OutOfMemoryError, lambda: torch.cat([tensor, tensor]))
        assert "device 1" in message, message
        assert_same(tensor, numbers(8 * MIB))
        witnesses.check()


if __name__ == "__main__":
    torch.cuda.set_limit_lms(LIMIT)
    torch.cuda.set_enabled_lms(True)
    run_tests()
