"""What a feature of PyTorch is here: a program that says when others need the memory.

It is a generator. Wherever it yields, other tensors take the device, so that short of memory all of
its own must leave; it returns what must be the same with LMS and without.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import torch
from lms_demo.training import digest
from torch import Tensor, nn

Result = dict[str, Any]
Body = Callable[[], Generator[None, None, Result]]

COUNT = 1 << 20  # elements of a large tensor
OTHERS = 12  # large tensors that take turns with the feature's


@dataclass(frozen=True)
class Feature:
    """A line of the table of what works."""

    title: str
    body: Body
    triton: bool = False  # whether Triton compiles kernels of it
    graphs: bool = False  # whether it is captured: what graphs use stays on the device

    def run(self) -> Result:
        """Runs it to its end; digests of what it returns and of the other tensors."""
        others = [torch.full((COUNT,), float(i), device="cuda") for i in range(OTHERS)]
        steps = self.body()
        held = 0
        while True:
            for other in others:
                other.add_(1)
            try:
                next(steps)
            except StopIteration as end:
                results = {name: digest(value) for name, value in end.value.items()}
                return results | {"others": digest(others), "held": held}
            # Kernels have had addresses, and yet nothing stays for them.
            if self.triton and not self.graphs:
                held = max(held, torch.cuda.lms.stats()["pinned_bytes.all.current"])


class Section:
    """Features of one kind; as a decorator of bodies, which support/features.py reads as well."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.features: dict[str, Feature] = {}

    def __call__(
        self,
        title: str,
        ratio: float = 2.0,
        gpu: str | None = None,
        triton: bool = False,
        graphs: bool = False,
    ) -> Callable[[Body], Body]:
        """Adds a feature.

        Args:
            title: its line in the table.
            ratio: its peak need over the limit when memory is short. Less with several streams, as
                they do not share the allocator's segments.
            gpu: why the simulated device cannot run it, if it cannot.
            triton: whether Triton compiles kernels of it.
            graphs: whether it is captured.
        """

        def add(body: Body) -> Body:
            self.features[body.__name__] = Feature(title, body, triton, graphs)
            return body

        return add


def numbers(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random normal numbers on the device, the same every time."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*(shape or (COUNT,)), generator=generator).to("cuda", dtype)


def leaf(*shape: int, seed: int = 1) -> Tensor:
    """The same as a leaf of autograd's graph."""
    return numbers(*shape, seed=seed).requires_grad_()


def perceptron(width: int = 512, layers: int = 3) -> nn.Sequential:
    """A model with 1 MiB of weights in a layer."""
    torch.manual_seed(1)
    parts = (part for _ in range(layers) for part in (nn.Linear(width, width), nn.GELU()))
    return nn.Sequential(*parts).cuda()


def gradients(model: nn.Module) -> list[Tensor | None]:
    """Of the parameters."""
    return [parameter.grad for parameter in model.parameters()]
