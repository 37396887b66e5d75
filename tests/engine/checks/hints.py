"""Hints: what they do to storages, and that results are the same with them.

Usage: hints.py [TEST...]
"""

from __future__ import annotations

import copy
import gc
import logging
from collections.abc import Callable
from typing import Any

import torch
from harness import TestCase, assert_same, lms, raises, run_tests, skip_with_much_memory
from programs import modes
from torch import Tensor, nn

Hint = lms.Hint
WIDTH = 512  # a layer has 1 MiB
LAYERS = 12
ROWS = 256  # an activation has half as much


def model_of(layers: int = LAYERS) -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(layers)]
    return nn.Sequential(*blocks, nn.Linear(WIDTH, WIDTH)).cuda()


def train(hint: Callable[[nn.Module], Any] | None = None, steps: int = 4) -> dict[str, Tensor]:
    """The weights after some steps."""
    model = model_of()
    given = hint(model) if hint else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        model(torch.randn(ROWS, WIDTH, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if given is not None:
        given.remove()
    return {name: one.detach().cpu() for name, one in model.state_dict().items()}


HINTS: dict[str, Callable[[nn.Module], Any]] = {
    "keep": lambda model: lms.hint(model[:4], keep=True, activations=True),
    "keep all": lambda model: lms.hint(model, keep=True, activations=True),
    "page": lambda model: lms.hint(model[4:], page=True),
    "never again": lambda model: lms.hint(model, recompute=False),
    "again": lambda model: lms.hint(model, recompute=True),
    "layers": lambda model: lms.LayerByLayer().apply(model),
    "names": lambda model: lms.ByName({"*bias": Hint(keep=True), "1*": Hint(page=True)}).apply(
        model
    ),
    "types": lambda model: lms.ByType({nn.Linear: Hint(page=True, recompute=False)}).apply(model),
    "shortage": lambda model: lms.OnShortage().apply(model),
}


class TestResults(TestCase):
    def expect_the_same(self, mode: str) -> None:
        expected = modes.measure(train, "off")
        limit = modes.limit_for(expected.memory, 2.0)
        for name, hint in HINTS.items():
            found = modes.measure(lambda hint=hint: train(hint), mode, limit)
            for weight, value in expected.result.items():
                assert_same(found.result[weight], value)
            if mode == "small":
                assert found.memory.paged_in > 0, name

    def test_off(self) -> None:
        self.expect_the_same("off")

    def test_fits(self) -> None:
        self.expect_the_same("fits")

    def test_small(self) -> None:
        self.expect_the_same("small")

    def test_chaos(self) -> None:
        self.expect_the_same("chaos")


class TestMemory(TestCase):
    """Tensors of 8 MiB, some eleven of which fit."""

    def setUp(self) -> None:
        super().setUp()
        skip_with_much_memory()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.set_limit_lms(96 << 20)
        self.begin()

    def begin(self) -> None:
        lms.set_enabled_lms(True)
        self.make(16)  # all memory is made one piece, for which everything leaves once

    def tearDown(self) -> None:
        lms.set_enabled_lms(False)
        torch.cuda.set_limit_lms(0)
        super().tearDown()

    made = 0

    @classmethod
    def make(cls, count: int) -> list[Tensor]:
        """No two are quite alike, so that LMS sees no cycle in it that it could plan for."""
        cls.made += count
        sizes = range((2 << 20) - 128 * cls.made, (2 << 20) - 128 * (cls.made - count), 128)
        return [torch.empty(size, device="cuda").normal_() for size in sizes]

    @staticmethod
    def overruled() -> int:
        return lms.stats()["lms.hints.overruled"]

    def test_what_is_kept_stays(self) -> None:
        kept = self.make(4)
        lms.hint(kept, keep=True)
        before = self.overruled()
        others = self.make(16)
        for _ in range(3):
            for one in others:
                one.add_(1)
            assert all(map(lms.is_resident, kept))
        assert self.overruled() == before
        assert not all(map(lms.is_resident, others))

    def test_without_hints_they_leave(self) -> None:
        tensors = self.make(4)
        others = self.make(16)
        assert not any(map(lms.is_resident, tensors)) and others

    def test_what_is_paged_leaves_first(self) -> None:
        tensors = self.make(8)
        lms.hint(tensors[-2:], page=True)
        more = self.make(4)
        assert all(map(lms.is_resident, tensors[:-2] + more))
        assert not all(map(lms.is_resident, tensors[-2:]))

    def test_hints_taken_back(self) -> None:
        tensors = self.make(4)
        with lms.hint(tensors, keep=True):
            pass
        earlier = lms.hint(tensors[0], keep=True)
        lms.hint(tensors[0], page=True).remove()  # the earlier one holds again
        lms.hint(tensors[1], keep=True)
        lms.hint(tensors[1])
        others = self.make(16)
        assert list(map(lms.is_resident, tensors)) == [True, False, False, False] and others
        earlier.remove()

    def test_memory_that_is_short_wins_and_says_so_once(self) -> None:
        lms._lms_log._report.told.clear()
        messages: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
        lms.logger.addHandler(handler)
        before = self.overruled()
        tensors = self.make(20)
        lms.hint(tensors, keep=True)
        for one in tensors:
            one.add_(1)
        assert self.overruled() > before
        for _ in range(2):
            lms._lms_log._report.next_look_at = 0
            torch.ones(2, device="cuda", requires_grad=True).sum().backward()
        lms.logger.removeHandler(handler)
        assert sum("what hints ask for" in message for message in messages) == 1, messages

    def test_hints_outlive_lms(self) -> None:
        """They are given while it is off, too."""
        lms.set_enabled_lms(False)
        kept = self.make(2)
        lms.hint(kept, keep=True)
        self.begin()
        for one in kept:
            one.add_(1)
        others = self.make(16)
        assert all(map(lms.is_resident, kept)) and others

    def test_outputs(self) -> None:
        """What a module returns is hinted each time."""
        module = nn.Identity()
        with lms.hint(module, keep=True, activations=True):
            kept = module(self.make(1)[0])
            others = self.make(16)
            assert lms.is_resident(kept)
        kept = module(self.make(1)[0])
        more = self.make(16)
        assert not lms.is_resident(kept) and others and more

    def test_what_is_rather_made_again(self) -> None:
        """On this device GELU takes longer than copies."""
        copied, made = self.traffic_of_gelus(None), self.traffic_of_gelus(True)
        assert made["lms.recompute.bytes"] > copied["lms.recompute.bytes"]
        assert made["lms.page_out.bytes"] < copied["lms.page_out.bytes"]

    def traffic_of_gelus(self, recompute: bool | None) -> dict[str, int]:
        torch.cuda.set_limit_lms(48 << 20)  # with another limit nothing is known of earlier plans
        torch.cuda.set_limit_lms(96 << 20)
        layers = nn.Sequential(*[nn.GELU() for _ in range(20)])
        x = torch.ones(2 << 20, device="cuda", requires_grad=True)
        before = lms.stats()
        with lms.hint(layers, recompute=recompute):
            for _ in range(8):
                layers(x).sum().backward()
        return {name: value - before[name] for name, value in lms.stats().items()}

    def test_what_is_never_made_again(self) -> None:
        """Under chaos all is that can be."""

        def made(**hints: Any) -> int:
            x, y = torch.ones(1 << 18, device="cuda"), torch.empty(1 << 18, device="cuda")
            lms.hint(y, **hints)
            before = lms.stats()["lms.recompute.count"]
            torch.exp(x, out=y)
            assert_same(y, x.cpu().exp())
            return lms.stats()["lms.recompute.count"] - before

        torch.ops.lms.set_chaos(True)
        try:
            assert made() > 0
            assert made(recompute=False) == 0
        finally:
            torch.ops.lms.set_chaos(False)

    def test_the_method_of_modules(self) -> None:
        lms.install_module_method()
        lms.install_module_method()
        try:
            lms.set_enabled_lms(False)
            model = nn.Sequential(*[nn.Linear(WIDTH * 2, WIDTH * 2, bias=False) for _ in range(16)])
            model.cuda()
            given = model.lms(aggressiveness=0.5, exclude=lambda one: one is model[0].weight)
            assert lms.get_enabled_lms()
            self.make(16)
            for weight in model.parameters():
                weight.sum()
            others = self.make(5)
            away = [not lms.is_resident(layer.weight) for layer in model]
            assert any(away[1:8]) and not (away[0] or any(away[9:])) and others, away
            given.remove()
            raises(ValueError, lambda: model.lms(aggressiveness=2), "between 0 and 1")
        finally:
            del nn.Module.lms
        raises(AttributeError, lambda: model.lms())


class TestPolicies(TestCase):
    """Which tensors get which hints."""

    @staticmethod
    def names(model: nn.Module, part: str) -> list[str]:
        given = lms._lms_hints._tensors()
        return [
            name
            for name, one in model.named_parameters()
            if one in given and getattr(given[one], part)
        ]

    def test_by_name(self) -> None:
        model = model_of(2)
        given = lms.ByName({"0.*.bias": Hint(keep=True), "0.*": Hint(page=True)}).apply(model)
        assert self.names(model, "keep") == ["0.0.bias"]
        assert self.names(model, "page") == ["0.0.weight"]
        given.remove()
        assert self.names(model, "keep") == self.names(model, "page") == []

    def test_by_type(self) -> None:
        model = model_of(2)
        hints = {nn.Linear: Hint(keep=True), nn.Sequential: Hint(page=True)}
        lms.ByType(hints).apply(model[:2])
        assert len(self.names(model, "keep")) == 4 and not self.names(model, "page")
        lms.ByType({nn.Sequential: Hint(page=True)}).apply(model)
        assert len(self.names(model, "page")) == 6

    def test_layer_by_layer(self) -> None:
        model = nn.ModuleDict({"first": nn.Linear(8, 8), "layers": model_of(2)}).cuda()
        lms.LayerByLayer().apply(model)
        assert len(self.names(model, "page")) == 6
        lms.OnShortage().apply(model)
        assert self.names(model, "page") == []
        lms.LayerByLayer(nn.GELU).apply(model)
        assert self.names(model, "page") == []

    def test_one_s_own(self) -> None:
        class Own(lms.Policy):
            def hint_for(self, name: str, module: nn.Module, tensor: Tensor | None) -> Any:
                asked.append(name)
                return Hint(keep=True) if tensor is model[0][0].weight else None

        asked: list[str] = []
        model = model_of(1)
        Own().apply(model)
        assert self.names(model, "keep") == ["0.0.weight"]
        assert asked == ["", "0", "0.0.weight", "0.0.bias", "0.0", "0.1", "1.weight", "1.bias", "1"]

    def test_tied_weights(self) -> None:
        model = model_of(1)
        model[1].weight = model[0][0].weight
        with lms.ByName({"0.*": Hint(keep=True), "1.*": Hint(page=True)}).apply(model):
            assert self.names(model, "keep") == ["0.0.weight", "0.0.bias"]

    def test_nothing_outlives_a_model(self) -> None:
        model = model_of(1)
        given = lms.hint(model, keep=True, activations=True)
        gc.collect()
        before = len(lms._lms_hints._tensors()), len(lms._lms_hints._outputs)
        del model
        gc.collect()
        after = len(lms._lms_hints._tensors()), len(lms._lms_hints._outputs)
        assert (before[0] - after[0], before[1] - after[1]) == (4, 5)
        given.remove()

    def test_a_copy_of_a_model_has_none(self) -> None:
        model = model_of(1)
        with lms.hint(model, keep=True, activations=True):
            other = copy.deepcopy(model)
            other(torch.ones(2, WIDTH, device="cuda"))
            assert self.names(other, "keep") == []


class TestCompiled(TestCase):
    def test_hints_are_not_in_graphs(self) -> None:
        model = model_of(2)
        x = torch.randn(ROWS, WIDTH, device="cuda")
        expected = model(x)
        with lms.hint(model, keep=True, activations=True):
            assert_same(torch.compile(model, backend="eager", fullgraph=True)(x), expected)


class TestErrors(TestCase):
    def test_not_on_the_device(self) -> None:
        model = nn.Linear(4, 4)
        raises(ValueError, lambda: lms.hint(model, keep=True), "on cpu", "first")
        raises(ValueError, lambda: lms.hint([torch.ones(2)], page=True), "on cpu")
        lms.hint(model)  # there is nothing to take back
        lms.hint(model, recompute=False).remove()

    def test_contradictions(self) -> None:
        raises(ValueError, lambda: lms.hint([], keep=True, page=True), "either")

    def test_what_has_no_hints(self) -> None:
        raises(TypeError, lambda: lms.hint(["weight"], keep=True), "got str")

    def test_numbers_that_mean_nothing(self) -> None:
        storage = torch.ones(2, device="cuda").untyped_storage()
        call = torch.ops.lms.set_hint
        for numbers in ((3, 0), (-1, 0), (0, 3)):
            raises(ValueError, lambda n=numbers: call(storage, *n, False), "no such hint")

    def test_another_method_of_the_name(self) -> None:
        nn.Module.lms = lambda self: None
        try:
            raises(RuntimeError, lms.install_module_method, "another attribute")
        finally:
            del nn.Module.lms


if __name__ == "__main__":
    run_tests()
