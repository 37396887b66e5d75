"""Programs made at random: tensors, views, writes, streams, threads, gradients, and what is freed.

random_programs.py SEED STEPS MODE... runs the program of a seed in modes of modes.MODES and in the
mode "storm", where the limit rises and falls, and prints a line of JSON for each: {"mode": ...,
"limit": bytes, "digests": of all tensors, every CHECK_EVERY steps, "memory": fields of
modes.Memory}. The first mode is "off". What a program does depends on the seed only, never on
values or addresses.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import torch
from lms_demo.training import digest, make_deterministic
from modes import limit_for, measure
from torch import Tensor

CHECK_EVERY = 250  # steps
MOST_TENSORS = 40
SIZES = (1, 100, 4097, 1 << 16, 1 << 18, 1 << 20)  # numbers of elements
RATIO = 2.0  # peak need over limit
SMALLEST_LIMIT = 64 << 20  # bytes: two streams have segments of their own
TYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float64, torch.int64)
UNARY = (torch.sin, torch.tanh, torch.neg, torch.clone, torch.square, torch.sigmoid, torch.abs)
BINARY = (torch.add, torch.sub, torch.mul, torch.maximum, torch.atan2)


class Program:
    """A sequence of steps, each of one or a few operators, on a pool of tensors."""

    def __init__(self, seed: int, between: Callable[[], None] = lambda: None) -> None:
        self.random = random.Random(seed)
        self.between = between  # called before each step
        self.tensors: list[Tensor] = []
        self.stream = torch.cuda.Stream()
        self.forked: list[tuple[torch.cuda.Event, Tensor]] = []  # results not waited for yet
        self.steps: list[tuple[Callable[[], None], int]] = [
            (self.make, 6), (self.unary, 10), (self.binary, 12), (self.write, 12),
            (self.view, 10), (self.copy, 5), (self.join, 4), (self.choose_elements, 5),
            (self.multiply, 4), (self.lists, 3), (self.convert, 4), (self.visit_host, 2),
            (self.replace_data, 2), (self.differentiate, 4), (self.free, 8), (self.alias, 2),
            (self.fork, 3), (self.merge, 3),
        ]  # fmt: skip

    def run(self, count: int) -> Iterator[str]:
        """Does that many steps; yields a digest of all tensors now and then."""
        for i in range(1, count + 1):
            self.step()
            if i % 40 == 0:
                self.on_another_stream()
            if i % 120 == 0:
                self.in_threads()
            if i % CHECK_EVERY == 0 or i == count:
                yield digest(self.tensors)

    def step(self) -> None:
        self.between()
        kinds, weights = zip(*self.steps, strict=True)
        if not self.tensors:
            self.make()
        self.random.choices(kinds, weights)[0]()

    def keep(self, *tensors: Tensor) -> None:
        """Adds to the pool; what does not fit drives others out."""
        for tensor in tensors:
            if len(self.tensors) >= MOST_TENSORS:
                self.free()
            self.tensors.append(tensor)

    def any(self) -> Tensor:
        return self.random.choice(self.tensors)

    def number(self) -> float:
        return self.random.uniform(-1, 1)

    def flat(self, count: int) -> list[Tensor]:
        """Floats of some tensors, of one length."""
        chosen = [self.any().reshape(-1).float() for _ in range(count)]
        length = min(tensor.numel() for tensor in chosen)
        return [tensor[:length] for tensor in chosen]

    # --- steps ---

    def make(self) -> None:
        size = self.random.choice(SIZES)
        made = torch.arange(size, device="cuda", dtype=torch.float32).mul_(self.number()).sin_()
        self.keep(made.view(2, -1) if size % 2 == 0 else made)

    def unary(self) -> None:
        self.keep(self.random.choice(UNARY)(self.any()))

    def binary(self) -> None:
        self.keep(self.random.choice(BINARY)(*self.flat(2)))

    def write(self) -> None:
        target = self.any()
        if torch._debug_has_internal_overlap(target) != 0:
            return
        kind = self.random.randrange(4)
        if kind == 0 or not target.is_floating_point():
            target.add_(self.random.randrange(1, 5))
        elif kind == 1:
            target.mul_(self.number()).add_(target)
        elif kind == 2:
            torch.sin(target.clone(), out=target)
        else:
            target.masked_fill_(target > self.number(), 0.5)

    def view(self) -> None:
        tensor = self.any()
        kind = self.random.randrange(5)
        if kind == 0 and tensor.dim() > 0:
            start = self.random.randrange(tensor.size(0))
            self.keep(tensor[start:])
        elif kind == 1 and tensor.dim() > 1:
            self.keep(tensor.transpose(0, 1))
        elif kind == 2:
            self.keep(tensor.reshape(-1)[::2])
        elif kind == 3 and tensor.numel() < 1000:
            self.keep(tensor.unsqueeze(0).expand(3, *tensor.shape))
        else:
            self.keep(tensor.detach())

    def copy(self) -> None:
        target = self.any()
        if torch._debug_has_internal_overlap(target) != 0:
            return
        source = self.any().reshape(-1).clone()
        flat = target.view(-1) if target.is_contiguous() else target[..., :1].reshape(-1)
        length = min(source.numel(), flat.numel())
        flat[:length].copy_(source[:length])

    def join(self) -> None:
        joined = torch.cat(self.flat(3))
        if joined.numel() <= max(SIZES):
            self.keep(joined, *joined.chunk(2)[:1])

    def choose_elements(self) -> None:
        (tensor,) = self.flat(1)
        count = min(tensor.numel(), 5000)
        index = torch.arange(count, device="cuda").flip(0)
        kind = self.random.randrange(3)
        if kind == 0:
            self.keep(tensor.index_select(0, index))
        elif kind == 1:
            self.keep(tensor.clone().scatter_(0, index, tensor[:count] * 2))
        else:
            self.keep(torch.where(tensor > self.number(), tensor, tensor.cos()))

    def multiply(self) -> None:
        (tensor,) = self.flat(1)
        side = min(int(tensor.numel() ** 0.5), 128)
        matrix = tensor[: side * side].view(side, side)
        self.keep(torch.tanh(matrix @ matrix.t()))

    def lists(self) -> None:
        tensors = [self.any().float().clone() for _ in range(self.random.randrange(2, 8))]
        torch._foreach_mul_(tensors, self.number())
        torch._foreach_add_(tensors, torch._foreach_sin(tensors))
        self.keep(*tensors[:2])

    def convert(self) -> None:
        self.keep(self.any().to(self.random.choice(TYPES)))

    def visit_host(self) -> None:
        tensor = self.any()
        self.keep(tensor.cpu().to("cuda", non_blocking=True))

    def replace_data(self) -> None:
        tensor, other = self.any(), self.any()
        if tensor.dtype == other.dtype:
            tensor.data = other.clone()

    def differentiate(self) -> None:
        x, y = (tensor.clone().requires_grad_() for tensor in self.flat(2))
        z = (x * y).sin() + x.exp().tanh()
        (z * z.detach()).sum().backward()
        self.keep(x.grad, y.grad)

    def free(self) -> None:
        if len(self.tensors) > 1:
            del self.tensors[self.random.randrange(len(self.tensors))]

    def alias(self) -> None:
        """Two pool entries, one tensor."""
        self.keep(self.any())

    def fork(self) -> None:
        """Work on the other stream that nobody waits for yet, though its argument dies."""
        argument = self.any().clone()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = self.random.choice(UNARY)(argument)
        argument.record_stream(self.stream)
        self.forked.append((self.stream.record_event(), result))

    def merge(self) -> None:
        if self.forked:
            event, result = self.forked.pop(0)
            torch.cuda.current_stream().wait_event(event)
            self.keep(result)

    # --- where steps run ---

    def on_another_stream(self) -> None:
        main = torch.cuda.current_stream()
        self.stream.wait_stream(main)
        with torch.cuda.stream(self.stream):
            for _ in range(5):
                self.step()
        main.wait_stream(self.stream)

    def in_threads(self) -> None:
        """Two programs at once, one on a stream of its own. Each leaves a few tensors."""
        parts = [Program(self.random.randrange(1 << 30), self.between) for _ in range(2)]
        main, own = torch.cuda.current_stream(), torch.cuda.Stream()
        own.wait_stream(main)

        def work(part: Program, stream: torch.cuda.Stream) -> None:
            with torch.cuda.stream(stream):
                for _ in range(15):
                    part.step()

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(work, parts, (main, own)))
        main.wait_stream(own)
        for part in parts:
            self.keep(*part.tensors[:3])


class Storm:
    """Raises and lowers the limit, and pages everything out, at random."""

    def __init__(self, limit: int) -> None:
        self.random = random.Random(0)
        self.limit = limit

    def __call__(self) -> None:
        chance = self.random.random()
        if chance < 0.02:
            torch.cuda.set_limit_lms(self.random.choice((self.limit, 2 * self.limit)))
        elif chance < 0.03:
            torch.cuda.reclaim_inactive()


def main() -> None:
    make_deterministic()
    seed, count = map(int, sys.argv[1:3])
    limit = 0
    for mode in sys.argv[3:]:
        between = Storm(limit) if mode == "storm" else lambda: None

        def run(between: Callable[[], None] = between) -> list[str]:
            return list(Program(seed, between).run(count))

        measured = measure(run, "small" if mode == "storm" else mode, limit)
        if mode == "off":
            limit = max(limit_for(measured.memory, RATIO), SMALLEST_LIMIT)
        row = {"mode": mode, "limit": limit, "digests": measured.result}
        print(json.dumps(row | {"memory": asdict(measured.memory)}), flush=True)


if __name__ == "__main__":
    main()
