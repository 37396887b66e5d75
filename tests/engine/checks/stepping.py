"""Optimizers whose steps run within backward passes: the same bits as with steps of their own.

Usage: stepping.py [TEST...]
"""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from harness import TestCase, assert_same, lms, raises, run_tests
from torch import Tensor, nn
from torch.optim import SGD, Adafactor, AdamW, NAdam, Optimizer

Make = Callable[[Iterable[Tensor]], Optimizer]
Prepare = Callable[[Optimizer], Any]

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9),
    "foreach": lambda parameters: AdamW(parameters, lr=0.01, amsgrad=True),
    "fused": lambda parameters: AdamW(parameters, lr=0.01, fused=True),
    "loop": lambda parameters: AdamW(parameters, lr=0.01, foreach=False),
    "nadam": NAdam,
    "adafactor": Adafactor,
}
WIDTH = 64


@dataclass
class Training:
    """A small model, and what a program does with it beside steps."""

    make: Make
    micro_batches: int = 1
    clip: float | None = None
    scaled: bool = False
    scheduled: bool = False
    infinite_at: int | None = None  # the step in which gradients overflow
    skipping: bool = False  # the last micro-batch uses a part of the model only
    width: int = WIDTH

    def run(self, prepare: Prepare = lambda _: None, steps: int = 4) -> dict[str, Any]:
        """`prepare` is given the optimizer, and returns what steps in backward passes, if any."""
        torch.manual_seed(0)
        first, second = nn.Linear(self.width, self.width), nn.Linear(self.width, self.width)
        tied = nn.Sequential(nn.GELU(), first, nn.LayerNorm(self.width))
        model = nn.ModuleList((first, second, tied)).cuda()
        optimizer = self.make(model.parameters())
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, enabled=self.scaled)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        stepping = prepare(optimizer)
        norms: list[Any] = []
        for number in range(steps):
            for micro_batch in range(self.micro_batches):
                is_last = micro_batch == self.micro_batches - 1
                y = first(torch.randn(16, self.width, device="cuda"))
                if not (self.skipping and is_last):
                    y = tied(second(y))
                loss = y.square().mean() * (torch.inf if number == self.infinite_at else 1)
                if stepping is None:
                    scaler.scale(loss).backward()
                elif not is_last:
                    with stepping.accumulating():
                        scaler.scale(loss).backward()
                elif self.scaled or self.clip is not None:
                    norms.append(stepping.backward(loss, max_norm=self.clip, scaler=scaler))
                else:
                    loss.backward()
            if stepping is None and self.clip is not None:
                scaler.unscale_(optimizer)
                norms.append(nn.utils.clip_grad_norm_(model.parameters(), self.clip))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if self.scheduled:
                scheduler.step()
        return copy.deepcopy(
            {
                "weights": list(model.parameters()),
                "state": optimizer.state_dict(),
                "scale": scaler.state_dict(),
                "norms": norms if self.clip is not None else [],
            }
        )


def compare(found: Any, expected: Any) -> None:
    if isinstance(expected, Tensor):
        assert_same(found.nan_to_num(7.0), expected.nan_to_num(7.0))
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            compare(found[name], value)
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            compare(one, other)
    else:
        assert found == expected


class CountingSGD(SGD):
    """It counts its steps in its groups, as optimizers without schedules do."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-group["lr"] / group["steps"])


class TestStepping(TestCase):
    def expect_the_same(self, **options: Any) -> None:
        for make in OPTIMIZERS.values():
            training = Training(make, **options)
            compare(training.run(lms.step_in_backward), training.run())

    def test_steps(self) -> None:
        self.expect_the_same()

    def test_schedules(self) -> None:
        self.expect_the_same(scheduled=True)

    def test_accumulated_gradients(self) -> None:
        self.expect_the_same(micro_batches=3)

    def test_accumulated_gradients_of_a_part(self) -> None:
        """What the last backward pass does not reach is left to `optimizer.step()`."""
        self.expect_the_same(micro_batches=2, skipping=True)

    def test_clipping(self) -> None:
        self.expect_the_same(clip=0.01)

    def test_clipping_of_accumulated_gradients(self) -> None:
        self.expect_the_same(clip=0.01, micro_batches=2, skipping=True)

    def test_scaling(self) -> None:
        self.expect_the_same(scaled=True, infinite_at=2)

    def test_scaling_and_clipping(self) -> None:
        self.expect_the_same(scaled=True, clip=0.01, infinite_at=2, micro_batches=2)

    def test_steps_counted_in_groups(self) -> None:
        training = Training(lambda parameters: CountingSGD(parameters, lr=0.1))
        compare(training.run(lms.step_in_backward), training.run())

    def test_several_groups(self) -> None:
        def make(parameters: Iterable[Tensor]) -> Optimizer:
            first, *others = parameters
            groups = [{"params": [first], "lr": 0.5}, {"params": others, "weight_decay": 0.1}]
            return AdamW(groups, lr=0.01)

        training = Training(make)
        compare(training.run(lms.step_in_backward), training.run())

    def test_gradients_are_gone_and_the_hooks_run_once(self) -> None:
        model = nn.Linear(WIDTH, WIDTH).cuda()
        optimizer = SGD(model.parameters(), lr=0.1)
        lms.step_in_backward(optimizer)
        calls = []
        optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        before = model.weight.clone()
        model(torch.ones(4, WIDTH, device="cuda")).sum().backward()
        assert not torch.equal(model.weight, before)
        assert model.weight.grad is None and model.bias.grad is None
        optimizer.step()
        assert calls == ["before"]

    def test_nothing_outlives_the_optimizer(self) -> None:
        model = nn.Linear(WIDTH, WIDTH).cuda()
        optimizer = SGD(model.parameters(), lr=0.1)
        lms.step_in_backward(optimizer)
        model(torch.ones(4, WIDTH, device="cuda")).sum().backward()
        weight = weakref.ref(model.weight)
        del model, optimizer
        gc.collect()
        assert weight() is None

    def test_removed(self) -> None:
        model = nn.Linear(WIDTH, WIDTH).cuda()
        optimizer = SGD(model.parameters(), lr=0.1)
        lms.step_in_backward(optimizer).remove()
        model(torch.ones(4, WIDTH, device="cuda")).sum().backward()
        assert model.weight.grad is not None
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        lms.step_in_backward(optimizer)


class TestErrors(TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.model = nn.Linear(WIDTH, WIDTH).cuda()
        self.x = torch.ones(4, WIDTH, device="cuda")

    def test_what_is_no_optimizer(self) -> None:
        raises(TypeError, lambda: lms.step_in_backward(self.model), "got Linear")

    def test_lbfgs(self) -> None:
        optimizer = torch.optim.LBFGS(self.model.parameters())
        raises(ValueError, lambda: lms.step_in_backward(optimizer), "several times")

    def test_twice(self) -> None:
        optimizer = SGD(self.model.parameters(), lr=0.1)
        stepping = lms.step_in_backward(optimizer)
        raises(ValueError, lambda: lms.step_in_backward(optimizer), "some of these")
        stepping.remove()

    def test_clipping_afterwards(self) -> None:
        stepping = lms.step_in_backward(SGD(self.model.parameters(), lr=0.1))
        self.model(self.x).sum().backward()
        clip = nn.utils.clip_grad_norm_
        raises(RuntimeError, lambda: clip(self.model.parameters(), 1.0), "max_norm=")
        stepping.remove()

    def test_more_of_a_gradient_after_its_step(self) -> None:
        stepping = lms.step_in_backward(SGD(self.model.parameters(), lr=0.1))
        self.model(self.x).sum().backward()
        raises(RuntimeError, lambda: self.model(self.x).sum().backward(), "accumulating")
        stepping.remove()

    def test_a_scaler_of_a_fused_optimizer(self) -> None:
        optimizer = SGD(self.model.parameters(), lr=0.1, fused=True)
        stepping = lms.step_in_backward(optimizer)
        scaler = torch.amp.GradScaler("cuda")
        scaler.scale(self.model(self.x).sum()).backward()
        raises(RuntimeError, lambda: scaler.step(optimizer), "scaler=scaler")
        stepping.remove()

    def test_replicas(self) -> None:
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        replica = nn.parallel.DistributedDataParallel(self.model)
        stepping = lms.step_in_backward(SGD(self.model.parameters(), lr=0.1))
        raises(RuntimeError, lambda: replica(self.x).sum().backward(), "averages")
        stepping.remove()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    run_tests()
