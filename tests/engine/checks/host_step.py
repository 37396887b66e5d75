"""Optimizers that step on the host: the same bits as PyTorch's fused kernels for CPUs, by hand.

Usage: host_step.py [TEST...]
"""

from __future__ import annotations

import copy
import gc
import os
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from harness import TestCase, assert_same, lms, raises, run_tests
from stepping import WIDTH, Make, Training, compare
from torch import Tensor, nn
from torch.cuda import _lms_host_speed, _lms_host_step
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, Optimizer

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adam": lambda parameters: Adam(parameters, lr=0.01, weight_decay=0.1),
    "adamw": lambda parameters: AdamW(parameters, lr=0.01, amsgrad=True),
    "adagrad": lambda parameters: Adagrad(parameters, lr=0.01, lr_decay=0.1),
}


def on_host(optimizer: Optimizer) -> Any:
    return lms.step_on_host(optimizer, even_if_slower=True)


def half_on_host(optimizer: Optimizer) -> Any:
    """One of the matrices steps on the device."""
    room = 2 * WIDTH * WIDTH * 4 + 2 * WIDTH * 4
    return lms.step_on_host(optimizer, device_bytes=room, even_if_slower=True)


class ByHand:
    """What the optimizer's step is replaced with: PyTorch's, of copies on the host."""

    def __init__(self, optimizer: Optimizer, parameters: Iterable[Tensor]) -> None:
        self.optimizer = optimizer
        self.twins = {one: one.detach().cpu() for one in parameters}
        self.on_host = type(optimizer)(
            [
                {
                    **group,
                    "params": [self.twins[one] for one in group["params"] if one in self.twins],
                }
                for group in optimizer.param_groups
            ]
        )
        if optimizer.state:
            self.on_host.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for group in self.on_host.param_groups:
            group.update(fused=True, foreach=None)
        for parameter, twin in self.twins.items():
            optimizer.state[parameter] = self.on_host.state[twin]
        self.on_device = optimizer.step
        optimizer.step = self.step  # type: ignore[method-assign]

    @torch.no_grad()
    def step(self) -> None:
        for group, own in zip(self.optimizer.param_groups, self.on_host.param_groups):
            own.update({name: group[name] for name in ("lr", "weight_decay")})
        for parameter, twin in self.twins.items():
            twin.copy_(parameter)
            twin.grad = None if parameter.grad is None else parameter.grad.cpu()
            parameter.grad = None
        self.on_host.step()
        for parameter, twin in self.twins.items():
            parameter.copy_(twin)
        self.on_device()


def by_hand(optimizer: Optimizer) -> None:
    ByHand(optimizer, [one for group in optimizer.param_groups for one in group["params"]])


def half_by_hand(optimizer: Optimizer) -> None:
    """The optimizer's first two parameters step on the device."""
    ByHand(optimizer, optimizer.param_groups[0]["params"][2:])


def load_and_step_by_hand(optimizer: Optimizer, saved: Any) -> None:
    optimizer.load_state_dict(saved)
    by_hand(optimizer)


def load_and_step_on_host(optimizer: Optimizer, saved: Any) -> None:
    optimizer.load_state_dict(saved)
    on_host(optimizer)


def step_on_host_and_load(optimizer: Optimizer, saved: Any) -> None:
    on_host(optimizer)
    optimizer.load_state_dict(saved)


class Untimely(nn.Module):
    """Its backward pass needs a weight after the gradient of that is complete."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        first = x * self.weight.detach()
        return first + x.detach() * self.weight


class TestHostStep(TestCase):
    def expect_the_same(self, make: Make = OPTIMIZERS["adamw"], **options: Any) -> None:
        training = Training(make, **options)
        compare(training.run(on_host), training.run(by_hand))

    def test_steps(self) -> None:
        for make in OPTIMIZERS.values():
            self.expect_the_same(make)

    def test_schedules(self) -> None:
        self.expect_the_same(scheduled=True)

    def test_accumulated_gradients(self) -> None:
        self.expect_the_same(micro_batches=2)

    def test_accumulated_gradients_of_a_part(self) -> None:
        """What the last backward pass does not reach steps in `optimizer.step()`."""
        self.expect_the_same(micro_batches=2, skipping=True)

    def test_clipping(self) -> None:
        self.expect_the_same(clip=0.01)

    def test_scaling_and_clipping(self) -> None:
        self.expect_the_same(scaled=True, clip=0.01, infinite_at=2, micro_batches=2)

    def test_gradients_that_wait_for_each_other(self) -> None:
        ahead, _lms_host_step._AHEAD = _lms_host_step._AHEAD, 1
        try:
            self.expect_the_same()
        finally:
            _lms_host_step._AHEAD = ahead

    def test_many_bytes(self) -> None:
        """With little memory LMS has to page out; see test_host_step.py."""
        training = Training(OPTIMIZERS["adamw"], width=1024)
        expected = training.run(by_hand)
        before = lms.stats().get("lms.page_out.copies", 0)
        compare(training.run(on_host), expected)
        if os.environ.get("EXPECT_PAGING"):
            assert lms.stats()["lms.page_out.copies"] > before

    def test_a_part_on_the_device(self) -> None:
        training = Training(lambda parameters: AdamW(parameters, lr=0.01))
        compare(training.run(half_on_host), training.run(half_by_hand))

    def test_several_groups(self) -> None:
        def make(parameters: Iterable[Tensor]) -> Optimizer:
            first, *others = parameters
            groups = [{"params": [first], "lr": 0.5}, {"params": others, "weight_decay": 0.1}]
            return AdamW(groups, lr=0.01)

        self.expect_the_same(make, scheduled=True)

    def test_closures(self) -> None:
        weights = []
        for prepare in (on_host, by_hand):
            torch.manual_seed(0)
            model = nn.Linear(WIDTH, WIDTH).cuda()
            optimizer = AdamW(model.parameters())
            prepare(optimizer)

            def closure(model: nn.Module = model, optimizer: Optimizer = optimizer) -> Tensor:
                optimizer.zero_grad()
                loss = model(torch.ones(4, WIDTH, device="cuda")).square().mean()
                loss.backward()
                return loss

            for _ in range(2):
                if prepare is on_host:
                    assert optimizer.step(closure).item() > 0
                else:
                    closure()
                    optimizer.step()
            weights.append(model.weight)
        assert_same(*weights)

    def test_other_types_and_layouts(self) -> None:
        for dtype in (torch.bfloat16, torch.float64):
            results = []
            for prepare in (on_host, by_hand):
                torch.manual_seed(0)
                model = nn.Conv2d(3, 5, 3).to("cuda", dtype, memory_format=torch.channels_last)
                optimizer = AdamW(model.parameters(), lr=0.1)
                prepare(optimizer)
                for _ in range(2):
                    model(torch.ones(2, 3, 8, 8, device="cuda", dtype=dtype)).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                results.append(model.weight)
            assert results[0].dtype == dtype and results[0].stride() == results[1].stride()
            assert_same(*results)

    def test_a_program_that_writes_to_parameters(self) -> None:
        weights = []
        for prepare in (on_host, by_hand):
            torch.manual_seed(0)
            model = nn.Linear(WIDTH, WIDTH).cuda()
            optimizer = AdamW(model.parameters())
            prepare(optimizer)
            for _ in range(3):
                model(torch.ones(4, WIDTH, device="cuda")).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                with torch.no_grad():
                    model.weight.clamp_(-0.05, 0.05)
            weights.append(model.weight)
        assert_same(*weights)

    def test_a_parameter_that_is_needed_after_its_step(self) -> None:
        for prepare in (on_host, lms.step_in_backward):
            model = Untimely().cuda()
            optimizer = Adam(model.parameters())
            stepping = prepare(optimizer)
            x = torch.ones(WIDTH, device="cuda", requires_grad=True)
            loss = model(x).sum()
            raises(RuntimeError, loss.backward, "modified by an inplace operation")
            stepping.remove()

    def test_checkpoints(self) -> None:
        """Of the plain optimizer and of one that steps on the host; each loads the other's."""
        for make in (OPTIMIZERS["adamw"], OPTIMIZERS["adagrad"]):
            for saving in (on_host, lambda _: None):
                torch.manual_seed(0)
                model = nn.Linear(WIDTH, WIDTH).cuda()
                optimizer = make(model.parameters())
                saving(optimizer)
                self.train(model, optimizer)
                saved = copy.deepcopy(optimizer.state_dict())
                found = [
                    self.trained_on(model, make, go_on, saved)
                    for go_on in (
                        load_and_step_by_hand,
                        load_and_step_on_host,
                        step_on_host_and_load,
                    )
                ]
                compare(found[1], found[0])
                compare(found[2], found[0])

    def trained_on(self, model: nn.Module, make: Make, go_on: Any, saved: Any) -> dict[str, Any]:
        model = copy.deepcopy(model)
        optimizer = make(model.parameters())
        go_on(optimizer, copy.deepcopy(saved))  # PyTorch keeps "step" of it
        self.train(model, optimizer)
        state = optimizer.state_dict()["state"]
        assert not any(value.is_cuda for one in state.values() for value in one.values())
        return {"weights": list(model.parameters()), "state": state}

    def train(self, model: nn.Module, optimizer: Optimizer) -> None:
        for _ in range(2):
            model(torch.ones(4, WIDTH, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    def test_a_checkpoint_while_steps_run(self) -> None:
        model = nn.Linear(WIDTH, WIDTH).cuda()
        optimizer = AdamW(model.parameters())
        on_host(optimizer)
        model(torch.ones(4, WIDTH, device="cuda")).sum().backward()
        state = optimizer.state_dict()["state"]
        assert all(one["step"].item() == 1 and one["exp_avg"].any() for one in state.values())
        optimizer.step()

    def test_a_process_made_by_fork_saves(self) -> None:
        model = nn.Linear(WIDTH, WIDTH).cuda()
        optimizer = AdamW(model.parameters())
        on_host(optimizer)
        self.train(model, optimizer)
        child = os.fork()
        if not child:
            saved = optimizer.state_dict()["state"]
            os._exit(0 if saved[0]["step"].item() == 2 else 1)
        assert os.waitpid(child, 0)[1] == 0

    def test_nothing_outlives_the_optimizer(self) -> None:
        model = nn.Linear(WIDTH, WIDTH).cuda()
        optimizer = Adam(model.parameters())
        worker = weakref.ref(on_host(optimizer)._worker)
        model(torch.ones(4, WIDTH, device="cuda")).sum().backward()
        thread = next(iter(worker()._threads))
        weight = weakref.ref(model.weight)
        del model, optimizer
        for _ in range(100):  # its last job may still run
            gc.collect()
            thread.join(0.1)
            if not thread.is_alive():
                break
        assert weight() is None and not thread.is_alive()

    def test_removed(self) -> None:
        """It goes on as one that has loaded the state."""
        torch.manual_seed(0)
        model = nn.Linear(WIDTH, WIDTH).cuda()
        optimizer = AdamW(model.parameters(), fused=True)
        stepping = on_host(optimizer)
        self.train(model, optimizer)
        other, saved = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
        stepping.remove()
        loaded = AdamW(other.parameters(), fused=True)
        loaded.load_state_dict(saved)
        self.train(model, optimizer)
        self.train(other, loaded)
        compare(optimizer.state_dict(), loaded.state_dict())
        assert_same(model.weight, other.weight)
        assert all(one.is_cuda for one in optimizer.state[model.weight].values())


class TestErrors(TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.model = nn.Linear(WIDTH, WIDTH).cuda()
        self.x = torch.ones(4, WIDTH, device="cuda")

    def test_other_optimizers(self) -> None:
        optimizer = NAdam(self.model.parameters())
        raises(ValueError, lambda: on_host(optimizer), "NAdam", "Adam, AdamW, SGD, Adagrad")
        raises(TypeError, lambda: on_host(self.model), "got Linear")  # type: ignore[arg-type]

    def test_twice(self) -> None:
        optimizer = Adam(self.model.parameters())
        stepping = on_host(optimizer)
        raises(ValueError, lambda: on_host(optimizer), "some of these")
        stepping.remove()

    def test_a_rate_on_the_device(self) -> None:
        rate = torch.tensor(0.1, device="cuda")
        optimizer = AdamW(self.model.parameters(), lr=rate, capturable=True)
        raises(ValueError, lambda: on_host(optimizer), "learning rate")

    def test_sparse_gradients(self) -> None:
        table = nn.Embedding(8, WIDTH, sparse=True).cuda()
        stepping = on_host(SGD(table.parameters(), lr=0.1, momentum=0.9))
        loss = table(torch.tensor([1, 2], device="cuda")).sum()
        raises(RuntimeError, loss.backward, "sparse")
        stepping.remove()

    def test_an_error_of_the_worker(self) -> None:
        optimizer = AdamW(self.model.parameters())
        stepping = on_host(optimizer)
        self.model(self.x).sum().backward()
        optimizer.step()
        state = optimizer.state[self.model.weight]
        momentum, state["exp_avg"] = state["exp_avg"], None
        self.model(self.x).sum().backward()
        raises(TypeError, optimizer.step)
        state["exp_avg"] = momentum
        self.model(self.x).sum().backward()
        optimizer.step()
        stepping.remove()

    def test_a_slow_host(self) -> None:
        optimizer = AdamW(self.model.parameters())
        original = _lms_host_speed.seconds_per_byte_both_ways
        _lms_host_speed.seconds_per_byte_both_ways = lambda *_: 0.0
        try:
            with self.assertLogs("torch.cuda.lms", "WARNING") as told:
                assert lms.step_on_host(optimizer) is None
        finally:
            _lms_host_speed.seconds_per_byte_both_ways = original
        assert "leaves the optimizer as it is" in told.output[0]
        self.model(self.x).sum().backward()
        assert self.model.weight.grad is not None

    def test_too_little_host_memory(self) -> None:
        optimizer = AdamW(self.model.parameters())
        original = _lms_host_step._make_twins

        def fail(_: Any) -> Any:
            raise MemoryError("no more")

        _lms_host_step._make_twins = fail
        try:
            raises(MemoryError, lambda: on_host(optimizer), "no more")
        finally:
            _lms_host_step._make_twins = original
        self.model(self.x).sum().backward()
        optimizer.step()
        assert optimizer.state[self.model.weight]["exp_avg"].is_cuda

    def test_a_fast_host(self) -> None:
        optimizer = AdamW(self.model.parameters())
        original = _lms_host_speed.seconds_per_byte_both_ways
        # The link is measured, and is no faster than this.
        _lms_host_speed.seconds_per_byte_both_ways = lambda *args: original(*args) + 1.0
        try:
            stepping = lms.step_on_host(optimizer)
        finally:
            _lms_host_speed.seconds_per_byte_both_ways = original
        assert stepping is not None
        stepping.remove()


if __name__ == "__main__":
    run_tests()
