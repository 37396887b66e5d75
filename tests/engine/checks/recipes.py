"""Bytes that are dropped and made again, by running the operator that made them.

Usage: recipes.py [TEST...]

Under chaos all that can be made again is dropped after the operator that made it, and copied the
next time that it leaves.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from harness import (
    TestCase,
    Worker,
    assert_same,
    in_thread,
    lms,
    numbers,
    run_tests,
    skip_without_second_device,
)
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

COUNT = 1 << 14


def made() -> int:
    return lms.stats()["lms.recompute.count"]


@contextmanager
def making(times: int | None = 1, where: str = "here") -> Iterator[None]:
    """In it so many storages are made again; None: at least one."""
    before = made()
    yield
    count = made() - before
    if times is None:
        assert count > 0, f"none was made again {where}"
    else:
        assert count == times, f"{count} were made again, not {times}"


def leave_by_copy(tensor: torch.Tensor) -> None:
    """What was dropped is made again, and leaves in the other way: next time it is dropped."""
    with making():
        tensor.neg()


def data(*shape: int) -> torch.Tensor:
    return numbers(*(shape or (COUNT,))) / 64


class TestRecipes(TestCase):
    def setUp(self) -> None:
        super().setUp()
        lms.set_recompute(True)
        torch.ops.lms.set_verify(False)

    def test_what_is_made_again_has_the_same_bits(self) -> None:
        x = data(64, 256)
        weight, bias = data(128, 256), data(128)
        image = data(2, 4, 16, 16)
        cases: list[tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = [
            (torch.exp, (x.neg(),)),
            (functional.gelu, (x,)),
            (lambda x: x.to(torch.bfloat16), (x,)),
            (lambda x: x.softmax(-1), (x,)),
            (lambda x: functional.layer_norm(x, (256,)), (x,)),
            (lambda x, y: torch.cat([x, y, x]), (x, weight)),
            (functional.linear, (x, weight, bias)),
            (torch.matmul, (x, weight.t())),
            (lambda x, y: x[:, ::2] + y[:64, 1::2], (x, weight)),
            (lambda x: functional.max_pool2d(x, 2), (image,)),
            (lambda x: x * 3 + 1, (x,)),
        ]
        for operator, arguments in cases:
            on_device = [argument.cuda() for argument in arguments]
            lms.set_recompute(False)
            expected = operator(*on_device).cpu()
            lms.set_recompute(True)
            result = operator(*on_device)
            before = made()
            assert_same(result.clone(), expected)
            assert made() > before, f"{operator} was not run again"

    def test_a_source_is_written_to(self) -> None:
        x = data().cuda()
        y = torch.square(x)
        with making():
            x.add_(1)
        assert_same(y, torch.square(data()))
        assert_same(x, data() + 1)

    def test_what_is_dropped_is_written_to(self) -> None:
        y = torch.square(data().cuda())
        y.mul_(2)
        assert_same(y, torch.square(data()) * 2)

    def test_results_in_what_the_caller_gives(self) -> None:
        x, weight = data(64, 256).cuda(), data(256, 128).cuda()
        out = torch.full((64, 128), 7.0, device="cuda")
        with making(1):
            torch.mm(x, weight, out=out)  # what was there is of no use
            assert_same(out, data(64, 256) @ data(256, 128))
        with making(1):
            torch.mul(out, out, out=out)  # makes what it reads; can be made itself then
            assert_same(out, (data(64, 256) @ data(256, 128)) ** 2)

    def test_results_in_parts_of_what_the_caller_gives(self) -> None:
        x = data(64, 64).cuda()
        out = torch.full((2, 64, 64), 7.0, device="cuda")
        with making(0):
            torch.mm(x, x, out=out[0])
            assert_same(out[0], data(64, 64) @ data(64, 64))
            assert_same(out[1], torch.full((64, 64), 7.0))

    def test_results_of_another_shape_than_the_caller_gives(self) -> None:
        x = data(64, 64).cuda()
        out = torch.full((64 * 64 + 512,), 7.0, device="cuda")
        with warnings.catch_warnings(), making(0):
            warnings.simplefilter("ignore")
            torch.mm(x, x, out=out)
            assert_same(out, data(64, 64) @ data(64, 64))
            rest = out.as_strided((512,), (1,), 64 * 64)
            assert_same(rest, torch.full((512,), 7.0))

    def test_a_source_dies(self) -> None:
        x = data().cuda()
        managed = lms.stats()["lms.managed.all.current"]
        y = torch.square(x)
        del x
        assert lms.stats()["lms.managed.all.current"] == managed + 1  # it is kept
        with making():
            assert_same(y, torch.square(data()))
        assert lms.stats()["lms.managed.all.current"] == managed

    def test_gradients_of_embeddings(self) -> None:
        rows = torch.arange(512).reshape(64, 8) % 100
        for mode, times in (("sum", 1), ("mean", 1), ("max", 0), (None, 0)):
            gradients = []
            for device in ("cpu", "cuda"):
                table = data(1024, 16).to(device).requires_grad_()
                if mode is None:
                    found = functional.embedding(rows.to(device), table)
                else:
                    found = functional.embedding_bag(rows.to(device), table, mode=mode)
                (found * 3).sum().backward()
                del found
                gradients.append(table.grad)
            with self.subTest(mode=mode), making(times):
                assert_same(gradients[1], gradients[0])

    def test_on_another_device(self) -> None:
        skip_without_second_device()
        x = data().cuda()
        with making(0):
            y = x.to("cuda:1")
            x.add_(1)
            assert_same(y, data())
            assert_same(y.to("cuda:0"), data())

    def test_in_place(self) -> None:
        cases: list[Callable[[torch.Tensor, torch.Tensor], object]] = [
            lambda y, x: y.relu_(),
            lambda y, x: y.add_(x),
            lambda y, x: y.mul_(y),
            lambda y, x: y[:, 3:5].add_(1),
            lambda y, x: y.t()[1:].mul_(y.t()[0]),
            lambda y, x: y.masked_fill_(x > 1, 5),
            lambda y, x: y[2:].copy_(x[2:]),
        ]
        x = data(64, 256)
        on_device = x.cuda()
        for number, change in enumerate(cases):
            expected, y = x - 2, on_device - 2
            leave_by_copy(y)
            change(expected, x)
            change(y, on_device)
            with making(None, f"in case {number}"):
                assert_same(y, expected)

    def test_in_place_by_another_operator(self) -> None:
        x = data() - 2
        on_device = x.cuda()
        y = on_device * 1
        leave_by_copy(y)
        # As CUDA's relu_ is, which the simulated device runs as one.
        with torch.library._scoped_library("aten", "IMPL") as library:
            library.impl("relu_", lambda y: y.clamp_min_(0), "CUDA")
            y.relu_()
        with making():
            assert_same(y, x.relu())

    def test_in_place_in_a_row(self) -> None:
        y, expected = data().cuda() * 1, data()
        for _ in range(20):
            y.add_(1).mul_(0.5)
            expected.add_(1).mul_(0.5)
            assert_same(y.neg(), expected.neg())
        assert_same(y, expected)

    def test_batch_norm(self) -> None:
        def run(device: str, training: bool) -> list[torch.Tensor]:
            torch.manual_seed(0)
            norm = nn.BatchNorm2d(8).train(training).to(device)
            x = data(4, 8, 16, 16).to(device)
            return [norm(x), *norm.buffers()]

        for training in (True, False):
            lms.set_recompute(False)
            expected = [tensor.cpu() for tensor in run("cuda", training)]
            lms.set_recompute(True)
            results = run("cuda", training)
            with making():
                results[0].neg()
            for result, host in zip(results, expected, strict=True):
                assert_same(result, host)

    def test_convolutions_where_they_are_deterministic(self) -> None:
        x, weight = data(2, 4, 16, 16).cuda(), data(8, 4, 3, 3).cuda()
        expected = functional.conv2d(x, weight).cpu()
        for deterministic in (False, True):
            with torch.backends.cudnn.flags(deterministic=deterministic):
                y = functional.conv2d(x, weight)
            with making(int(deterministic)):
                assert_same(y, expected)
            with torch.backends.cudnn.flags(deterministic=deterministic), making(0):
                z = functional.conv_transpose2d(x, weight.transpose(0, 1))
                z.neg()

    def test_what_is_dropped_dies_with_its_source(self) -> None:
        managed = lms.stats()["lms.managed.all.current"]
        x = data().cuda()
        y = torch.square(x)
        del x
        del y
        assert lms.stats()["lms.managed.all.current"] == managed

    def test_from_what_died_and_was_never_kept(self) -> None:
        x = data().cuda()
        y = torch.square(x * 2 - 1)
        with making():
            assert_same(y, torch.square(data() * 2 - 1))

    def test_in_a_row(self) -> None:
        row = [data().cuda()]
        expected = [data()]
        for _ in range(20):
            row.append(row[-1] * 1.5)
            expected.append(expected[-1] * 1.5)
        for tensor, host in zip(reversed(row), reversed(expected), strict=True):
            assert_same(tensor.clone(), host)

    def test_a_row_without_an_end(self) -> None:
        """Where each is made from the one before, what is known of them does not grow."""
        x = torch.zeros(COUNT, device="cuda")
        for step in range(2000):
            x = x + 1
            if step == 1000:
                assert_same(x.clone(), torch.full((COUNT,), 1001.0))
        assert_same(x, torch.full((COUNT,), 2000.0))

    def test_random_numbers_are_drawn_again(self) -> None:
        def attention(x: torch.Tensor) -> torch.Tensor:
            heads = x.reshape(4, 8, 16, 32)
            return functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.2)

        cases: list[tuple[Callable[[torch.Tensor], torch.Tensor], torch.dtype]] = [
            (partial(functional.dropout, p=0.1), torch.float32),
            (partial(functional.dropout, p=0.5), torch.bfloat16),
            (lambda x: torch.native_dropout(x, 0.3, True)[1].float() + 1, torch.float32),
            (attention, torch.float32),
            (attention, torch.bfloat16),
        ]
        for draw, dtype in cases:
            lms.set_recompute(False)
            torch.manual_seed(5)
            expected = draw(data().to(dtype).cuda()).cpu()
            lms.set_recompute(True)
            x = data().to(dtype).cuda()
            torch.manual_seed(5)
            y = draw(x)
            torch.rand(8, device="cuda")
            state = torch.cuda.get_rng_state()
            with making(None):
                assert_same(y, expected)
            assert torch.equal(state, torch.cuda.get_rng_state())

    def test_random_numbers_while_another_thread_draws(self) -> None:
        count = 100
        x = data().cuda()

        def draw() -> list[torch.Tensor]:
            return [torch.rand(256, device="cuda") for _ in range(count)]

        torch.manual_seed(5)
        expected = [functional.dropout(x).cpu() for _ in range(count)]
        alone = draw()
        torch.manual_seed(5)
        results = [functional.dropout(x) for _ in range(count)]
        beside: list[torch.Tensor] = []
        worker = Worker(lambda: beside.extend(draw()))
        worker.start()
        with making(count):
            for result, host in zip(results, expected, strict=True):
                assert_same(result, host)
        worker.finish()
        for one, other in zip(alone, beside, strict=True):
            assert_same(one, other)

    def test_random_numbers_are_not_drawn_again(self) -> None:
        x = data().cuda()
        with making(0):
            y = torch.bernoulli(torch.full_like(x, 0.5))
            assert 0 < y.sum().item() < COUNT

    def test_training(self) -> None:
        def train() -> list[torch.Tensor]:
            torch.manual_seed(0)
            model = nn.Sequential(
                nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Dropout(0.1), nn.Linear(128, 8)
            ).cuda()
            optimizer = torch.optim.AdamW(model.parameters())
            for step in range(3):
                model(data(32, 64).cuda() + step).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            return [parameter.detach().cpu() for parameter in model.parameters()]

        lms.set_recompute(False)
        with making(0):
            expected = train()
        lms.set_recompute(True)
        with making(None):
            for parameter, host in zip(train(), expected, strict=True):
                assert_same(parameter, host)

    def test_nothing_of_the_program_sees_it(self) -> None:
        names: list[str] = []

        class Names(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
                names.append(str(func))
                return func(*args, **(kwargs or {}))

        x = data().cuda().requires_grad_()
        y = torch.square(x)
        z = torch.square(x)
        with making(2), torch.autocast("cuda", torch.bfloat16), Names():
            y.neg()
            with torch.profiler.profile() as profile:
                z.neg()
        names = [name for name in names if name.startswith("aten")]
        assert names == ["aten.neg.default"] * 2, names
        operators = [event.key for event in profile.key_averages() if "aten::" in event.key]
        assert operators == ["aten::neg"], operators
        y.sum().backward()
        assert_same(x.grad, data() * 2)

    def test_in_inference_mode_and_under_transforms(self) -> None:
        x = data(8, 256).cuda()
        y, z, rows = torch.square(x), torch.square(x), torch.square(x)
        with making(3):
            with torch.inference_mode():
                assert_same(y, torch.square(data(8, 256)))
            with torch.no_grad():
                assert_same(z, torch.square(data(8, 256)))
            negative = torch.vmap(torch.neg)(rows)
        assert_same(negative, -torch.square(data(8, 256)))

    def test_made_under_the_python_dispatcher(self) -> None:
        """As where Inductor folds constants: Python may choose the kernel, so it is copied."""
        x = data().cuda()
        with enable_python_dispatcher(), making(0):
            y = x * 2
        with making(0):
            assert_same(y, data() * 2)

    def test_with_the_flags_of_its_time(self) -> None:
        def flags(x: torch.Tensor) -> torch.Tensor:
            return torch.full_like(x, float(torch.backends.cuda.matmul.allow_tf32))

        library = torch.library.Library("aten", "IMPL")
        library.impl("special_airy_ai", flags, "CUDA")
        x = data(4).cuda()
        torch.backends.cuda.matmul.allow_tf32 = True
        y = torch.special.airy_ai(x)
        torch.backends.cuda.matmul.allow_tf32 = False
        with making():
            assert_same(y, torch.ones(4))
        assert not torch.backends.cuda.matmul.allow_tf32
        assert_same(torch.special.airy_ai(x), torch.zeros(4))

    def test_an_address_escapes(self) -> None:
        """What uses the address is not seen, so nothing is made from those bytes any more."""
        x = data().cuda()
        y = torch.square(x)
        with making():
            assert x.data_ptr() != 0
            torch.ops.lms.hold(x.untyped_storage())
        assert_same(y, torch.square(data()))
        with making(0):
            z = torch.square(x)
            assert_same(z, torch.square(data()))

    def test_while_pinned_by_the_program(self) -> None:
        x = data().cuda()
        y = torch.square(x)
        with making(), lms.pin(x):  # its kernels may write to it
            z = torch.square(x)
        with making(0):
            assert_same(z, torch.square(data()))
        assert_same(y, torch.square(data()))

    def test_in_two_threads(self) -> None:
        for _ in range(20):
            x = data().cuda()
            y = torch.square(x)
            results: list[torch.Tensor] = []

            def use(y: torch.Tensor = y, results: list[torch.Tensor] = results) -> None:
                results.append(y * 2)

            workers = [Worker(use) for _ in range(2)]
            with making():
                for worker in workers:
                    worker.start()
                for worker in workers:
                    worker.finish()
            for result in results:
                assert_same(result, torch.square(data()) * 2)

    def test_on_another_stream_and_thread(self) -> None:
        x = data().cuda()
        y = torch.square(x)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        results: list[torch.Tensor] = []

        def use() -> None:
            with torch.cuda.stream(side):
                results.append(y + 1)

        with making():
            in_thread(use)
        side.synchronize()
        assert_same(results[0], torch.square(data()) + 1)
        assert_same(y * 2, torch.square(data()) * 2)

    def test_turned_off_while_something_is_dropped(self) -> None:
        x = data().cuda()
        y = torch.square(x)
        torch.ops.lms.set_chaos(False)
        torch.cuda.set_enabled_lms(False)
        assert_same(y, torch.square(data()))
        assert_same(x, data())
        torch.cuda.set_enabled_lms(True)
        torch.ops.lms.set_chaos(True)

    def test_span_in_a_profile(self) -> None:
        y = torch.square(data().cuda())
        with (
            making(),
            profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True) as run,
        ):
            y.neg()
        (span,) = (event for event in run.events() if event.name == "lms::recompute")
        assert span.concrete_inputs == [y.untyped_storage().nbytes()]
        assert span.cpu_parent.name == "aten::neg"
        assert [event.name for event in run.events()].count("aten::square") == 0

    def test_settings(self) -> None:
        assert lms.get_recompute()
        y = torch.square(data().cuda())
        lms.set_recompute(False)
        assert not lms.get_recompute()
        with making():  # it is dropped already
            assert_same(y, torch.square(data()))
        with making(0):
            assert_same(torch.square(data().cuda()), torch.square(data()))
        lms.set_recompute(True)

    def test_operators_whose_bits_differ_are_found(self) -> None:
        count = [0]

        def moody(x: torch.Tensor) -> torch.Tensor:
            count[0] += 1
            return torch.full_like(x, count[0])

        library = torch.library.Library("aten", "IMPL")
        library.impl("special_bessel_j0", moody, "CUDA")
        torch.ops.lms.set_verify(True)
        before = torch.ops.lms.compared()
        with making(0):
            x = data().cuda()
            assert_same(torch.square(x) * 2, torch.square(data()) * 2)
            assert torch.ops.lms.differing() == []
            assert torch.ops.lms.compared() == before + 2
            x = data(4).cuda()
            assert_same(torch.special.bessel_j0(x), torch.ones(4))
        assert torch.ops.lms.differing() == ["aten::special_bessel_j0, result 0"]
        torch.ops.lms.set_verify(False)


if __name__ == "__main__":
    torch.cuda.set_enabled_lms(True)
    torch.ops.lms.set_chaos(True)
    run_tests()
