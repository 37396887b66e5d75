"""Traces for tests: written by hand, or of a transformer's training that never ran."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIB = 1 << 20
PAGE = 9_900_000  # bytes of a storage, unless a test says otherwise
HEADER = {"lms_trace": 2, "name": "by hand", "card": "none"}


def alloc(identity: int, size: int = PAGE) -> dict[str, Any]:
    return {"alloc": identity, "bytes": size, "kind": "activation"}


def op(reads: str, writes: str, us: float = 1000, again: str = "") -> dict[str, Any]:
    return {
        "op": f"test::{reads}to{writes}",
        "us": us,
        "reads": [int(digit) for digit in reads],
        "writes": [int(digit) for digit in writes],
        "again": [int(digit) for digit in again],
    }


def free(identity: int) -> dict[str, Any]:
    return {"free": identity}


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@dataclass
class Transformer:
    """What is trained. Sizes in MiB, times in microseconds."""

    layers: int = 12
    steps: int = 6
    parallel: int = 1  # operators into which each of a layer's is split
    parameter: float = 24.0  # of a layer, as are the following
    activation: float = 16.0
    workspace: float = 8.0
    forward: float = 400.0  # its backward takes twice that, its update a tenth
    again: bool = False  # what is computed forward can be made again
    next_id: int = 0

    def lines(self) -> Iterator[dict[str, Any]]:
        """The trace's rows, the header first."""
        yield {"lms_trace": 2, "name": "synthetic transformer", "card": "none"}
        weights, moments = [], []
        for _ in range(self.layers):
            yield from self.make(weights, self.parameter, "parameter")
            yield self.run("aten::normal_", 1.0, [], weights[-1:])
        for _ in range(self.layers):
            yield from self.make(moments, 2 * self.parameter, "optimizer")
            yield self.run("aten::zero_", 1.0, [], moments[-1:])
        for step in range(self.steps):
            yield {"step": step}
            yield from self.step(weights, moments)

    def step(self, weights: list[int], moments: list[int]) -> Iterator[dict[str, Any]]:
        activations: list[int] = []
        yield from self.make(activations, self.activation, "input")
        yield self.run("aten::copy_", 1.0, [], activations)
        for weight in weights:
            yield from self.make(activations, self.activation, "activation")
            made = activations[-1:] if self.again else []
            reads = [activations[-2], weight]
            yield from self.work("aten::mm", self.forward, reads, activations, made)
        gradients: list[int] = []
        chain: list[int] = []
        yield from self.make(chain, self.activation, "gradient")
        yield self.run("aten::ones_like", 1.0, activations[-1:], chain)
        for weight in reversed(weights):
            yield from self.make(gradients, self.parameter, "gradient")
            yield from self.make(chain, self.activation, "gradient")
            output = activations.pop()
            reads = [chain[-2], weight, activations[-1], output]
            yield from self.work("aten::mm_backward", 2 * self.forward, reads, [gradients[-1]])
            yield self.run("aten::add_", 1.0, [gradients[-1]], chain[-1:])
            yield {"free": chain[-2]}
            yield {"free": output}
        yield {"free": chain[-1]}
        yield {"free": activations.pop()}
        for weight, moment, gradient in zip(weights, moments, reversed(gradients)):
            update = self.forward / 10
            yield self.run("aten::_fused_adamw_", update, [gradient], [weight, moment])
            yield {"free": gradient}

    def make(self, into: list[int], size: float, kind: str) -> Iterator[dict[str, Any]]:
        into.append(self.next_id)
        self.next_id += 1
        yield {"alloc": into[-1], "bytes": int(size * MIB), "kind": kind}

    def work(
        self,
        name: str,
        duration: float,
        reads: list[int],
        writes: list[int],
        again: Sequence[int] = (),
    ) -> Iterator[dict[str, Any]]:
        """A layer's operators, with a workspace while they run."""
        scratch: list[int] = []
        yield from self.make(scratch, self.workspace, "workspace")
        for _ in range(self.parallel):
            yield self.run(name, duration / self.parallel, reads, [writes[-1], scratch[0]], again)
        yield {"free": scratch[0]}

    def run(
        self,
        name: str,
        duration: float,
        reads: list[int],
        writes: list[int],
        again: Sequence[int] = (),
    ) -> dict[str, Any]:
        row = {"op": name, "us": duration, "reads": list(reads), "writes": list(writes)}
        return row | {"again": list(again)}

    def text(self) -> str:
        return "".join(f"{json.dumps(row)}\n" for row in self.lines())
