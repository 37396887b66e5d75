"""Graphs that Inductor writes in C++ launch unseen: what they are given is pinned meanwhile.

Usage: cpp_graphs.py [TEST...], with CUDA's headers on CPATH
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch._inductor
from harness import TestCase, assert_same, is_held, lms, page_out, run_tests
from torch import nn
from torch.nn import functional

WIDTH = 64


class Model(nn.Module):
    """Without a matrix product, for which C++ calls cuBLAS: the simulated device has none."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(float(WIDTH), device="cuda"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x * self.weight, (WIDTH,)).relu() * 2 + 1


class TestCppGraphs(TestCase):
    def test_training(self) -> None:
        model, x = Model(), torch.randn(32, WIDTH, device="cuda")
        with torch._inductor.config.patch(cpp_wrapper=True):
            compiled: Any = torch.compile(model)

            def step() -> tuple[torch.Tensor, ...]:
                result = compiled(x)
                return result, *torch.autograd.grad(result.square().sum(), (model.weight,))

            expected = step()
            torch.cuda.set_enabled_lms(True)
            for _ in range(2):
                page_out(x, model.weight)
                for found, without in zip(step(), expected):
                    assert_same(found, without)
        assert not is_held(x) and not is_held(model.weight)
        assert lms.stats()["pinned_bytes.all.current"] == 0

    def test_package(self) -> None:
        model, x = Model(), torch.randn(32, WIDTH, device="cuda")
        with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
            package = str(Path(folder) / "model.pt2")
            exported = torch.export.export(model, (x,))
            torch._inductor.aoti_compile_and_package(exported, package_path=package)
            loaded = torch._inductor.aoti_load_package(package)
            expected = loaded(x)
            torch.cuda.set_enabled_lms(True)
            page_out(x)
            assert_same(loaded(x), expected)
        assert not is_held(x)
        assert lms.stats()["pinned_bytes.all.current"] == 0


if __name__ == "__main__":
    run_tests()
