"""A trace of gradient accumulation: many micro-batches, then a step of the optimizer.

Usage: python docs/benchmarks/accumulation_trace.py [--micro-batches N] [--steps N] > FILE

Of a model of 16 layers that never ran. A micro-batch is 66 operators: its input, a forward and a
backward pass, and each layer's gradient added to those before. The first one of a step makes the
gradients, and the optimizer ends their lives: a step is 66 N operators. Weights and the state of
the optimizer stay, the rest comes and goes. All of it takes 1.8 GiB, and without the optimizer's
state 1.1 GiB. `./scripts/lms trace replay` tells how fast it would train with less.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

MIB = 1 << 20
# MiB of the layers' weights, and of other storages. The optimizer's state takes twice the weight.
PARAMETERS = (16, 16, 24, 32, 16, 16, 32, 16, 32, 24, 24, 32, 24, 24, 32, 24)
ACTIVATION = 16
WORKSPACE = 8
# Microseconds of operators
FORWARD = 400
BACKWARD = 2 * FORWARD
UPDATE = 40
ADD = 20
SMALL = 1

Row = dict[str, Any]


class Accumulation:
    """The rows of the trace."""

    def __init__(self, micro_batches: int, steps: int) -> None:
        self.micro_batches = micro_batches
        self.steps = steps
        self.made = 0  # storages so far
        self.weights: list[int] = []
        self.moments: list[int] = []
        self.gradients: dict[int, int] = {}  # by layer

    def __iter__(self) -> Iterator[Row]:
        name = f"accumulation over {self.micro_batches} micro-batches"
        yield {"lms_trace": 1, "name": name}
        for size in PARAMETERS:
            yield self._make(self.weights, size, "parameter")
            yield _run("aten::normal_", SMALL, [], self.weights[-1:])
        for size in PARAMETERS:
            yield self._make(self.moments, 2 * size, "optimizer")
            yield _run("aten::zero_", SMALL, [], self.moments[-1:])
        for step in range(self.steps):
            yield {"step": step}
            for _ in range(self.micro_batches):
                yield from self._micro_batch()
            yield from self._optimizer()

    def _micro_batch(self) -> Iterator[Row]:
        activations: list[int] = []
        yield self._make(activations, ACTIVATION, "input")
        yield _run("aten::copy_", SMALL, [], activations)
        for weight in self.weights:
            reads = [activations[-1], weight]
            yield self._make(activations, ACTIVATION, "activation")
            yield from self._work("aten::mm", FORWARD, reads, activations[-1])
        chain: list[int] = []
        yield self._make(chain, ACTIVATION, "gradient")
        yield _run("aten::ones_like", SMALL, activations[-1:], chain)
        for layer in reversed(range(len(PARAMETERS))):
            output = activations.pop()
            reads = [chain[-1], self.weights[layer], activations[-1], output]
            yield from self._gradient(layer, reads)
            yield self._make(chain, ACTIVATION, "gradient")
            yield _run("aten::add", SMALL, [self.gradients[layer]], chain[-1:])
            yield {"free": chain[-2]}
            yield {"free": output}
        yield {"free": chain[-1]}
        yield {"free": activations[0]}

    def _gradient(self, layer: int, reads: list[int]) -> Iterator[Row]:
        """Of a layer's weight, which is added to what there is of it."""
        made: list[int] = []
        yield self._make(made, PARAMETERS[layer], "gradient")
        yield from self._work("aten::mm_backward", BACKWARD, reads, made[0])
        if layer not in self.gradients:
            self.gradients[layer] = made[0]
            return
        yield _run("aten::add_", ADD, made, [self.gradients[layer]])
        yield {"free": made[0]}

    def _optimizer(self) -> Iterator[Row]:
        for layer, state in enumerate(zip(self.weights, self.moments)):
            gradient = self.gradients.pop(layer)
            yield _run("aten::_fused_adamw_", UPDATE, [gradient], list(state))
            yield {"free": gradient}

    def _work(self, name: str, duration: float, reads: list[int], result: int) -> Iterator[Row]:
        """An operator with a workspace."""
        scratch: list[int] = []
        yield self._make(scratch, WORKSPACE, "workspace")
        yield _run(name, duration, reads, [result, *scratch])
        yield {"free": scratch[0]}

    def _make(self, into: list[int], size: int, kind: str) -> Row:
        into.append(self.made)
        self.made += 1
        return {"alloc": into[-1], "bytes": size * MIB, "kind": kind}


def _run(name: str, duration: float, reads: list[int], writes: list[int]) -> Row:
    return {"op": name, "us": duration, "reads": reads, "writes": writes}


def _main() -> None:
    parser = argparse.ArgumentParser(description="Print a trace of gradient accumulation.")
    parser.add_argument("--micro-batches", type=int, default=2_048, help="of a step")
    parser.add_argument("--steps", type=int, default=9, help="the first three are not measured")
    options = parser.parse_args()
    for row in Accumulation(options.micro_batches, options.steps):
        sys.stdout.write(f"{json.dumps(row)}\n")


if __name__ == "__main__":
    _main()
