"""Training, evaluation, checkpoints, changing shapes and failing user code, round after round.

soak.py ROUNDS [FOLDER] does them on two devices, without LMS and short of memory, and prints a
line of JSON for each of the two: {"mode": ..., "limit": bytes, "digests": one per round, "left":
what was still in use after some rounds, see `left_over`, "memory": fields of modes.Memory, "read":
bytes from disk}. With a FOLDER the host has memory for a quarter of what leaves the devices, and
the rest goes to disk there.
"""

from __future__ import annotations

import io
import json
import random
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import psutil
import torch
from lms_demo.training import digest, make_deterministic
from modes import limit_for, measure
from torch import Tensor, nn

WIDTH = 512
LAYERS = 20
RATIO = 2.0  # peak need over limit: as much leaves a device as stays
DISK_SHARE = 4  # of what leaves, one part stays in the host's memory
CHECK_EVERY = 20  # rounds
DEVICES = ("cuda:0", "cuda:1")


class UserError(Exception):
    """What the code of a user raises here."""


class Fails(torch.autograd.Function):
    """Fails in one of its passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, late: bool) -> Tensor:
        if not late:
            raise UserError("forward")
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        raise UserError("backward")


class Soak:
    """A model with its optimizer per device, and what may happen to them."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.models = [self.model().to(device) for device in DEVICES]
        self.optimizers = [
            torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=bool(i))
            for i, model in enumerate(self.models)
        ]
        self.activities: list[Callable[[random.Random], Any]] = [
            self.train, self.train, self.train, self.evaluate, self.checkpoint,
            self.fail, self.exchange, self.train_in_threads,
        ]  # fmt: skip

    def model(self) -> nn.Sequential:
        layers = (part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
        return nn.Sequential(*layers)

    def round(self, number: int) -> str:
        """One activity, the same for the same number; a digest of what came out."""
        chosen = random.Random(number)
        return digest(chosen.choice(self.activities)(chosen))

    def batch(self, chosen: random.Random, device: int) -> Tensor:
        """Of a size that changes."""
        generator = torch.Generator().manual_seed(chosen.randrange(1 << 30))
        rows = chosen.choice((16, 100, 256, 700))
        return torch.randn(rows, WIDTH, generator=generator).to(DEVICES[device])

    def step(self, device: int, x: Tensor) -> Tensor:
        loss = self.models[device](x).square().mean()
        loss.backward()
        self.optimizers[device].step()
        self.optimizers[device].zero_grad()
        return loss.detach()

    def train(self, chosen: random.Random) -> Any:
        return [self.step(i, self.batch(chosen, i)) for i in (0, 1, 0)]

    def train_in_threads(self, chosen: random.Random) -> Any:
        batches = [self.batch(chosen, i) for i in (0, 1)]
        losses: dict[int, Tensor] = {}

        def work(device: int) -> None:
            losses[device] = self.step(device, batches[device])

        threads = [threading.Thread(target=work, args=(device,)) for device in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [losses[0], losses[1]]

    def evaluate(self, chosen: random.Random) -> Any:
        device = chosen.randrange(2)
        with torch.inference_mode():
            return self.models[device](self.batch(chosen, device))

    def checkpoint(self, chosen: random.Random) -> Any:
        """Saved, changed, and restored."""
        device = chosen.randrange(2)
        model, optimizer = self.models[device], self.optimizers[device]
        file = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict()], file)
        self.step(device, self.batch(chosen, device))
        file.seek(0)
        weights, state = torch.load(file, map_location=chosen.choice(("cpu", DEVICES[device])))
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
        return model.state_dict()

    def fail(self, chosen: random.Random) -> Any:
        """In the middle of a pass: what was there before must be there afterwards."""
        device = chosen.randrange(2)
        try:
            y = self.models[device][:4](self.batch(chosen, device))
            Fails.apply(y, chosen.random() < 0.5).sum().backward()
        except UserError as error:
            self.optimizers[device].zero_grad()
            return [str(error), self.models[device].state_dict()]
        raise AssertionError("it was to fail")

    def exchange(self, chosen: random.Random) -> Any:
        """Between the devices, and gradients across them."""
        x = self.batch(chosen, 0)
        y = self.models[1](self.models[0](x).to(DEVICES[1]))
        y.square().mean().backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return y.detach()


def left_over() -> dict[str, int]:
    """Bytes: tensors on the devices and on the host, in page tables, and of the process."""
    torch.cuda.empty_cache()  # also ends what is being paged out, which would count twice
    stats = [torch.cuda.lms.stats(device) for device in range(2)]
    return {
        "allocated": sum(
            torch.cuda.memory_stats(device)["requested_bytes.all.current"] for device in range(2)
        )
        + sum(one["lms.paged_out_bytes.current"] for one in stats),
        "managed": sum(one["lms.managed.all.current"] for one in stats),
        "process": psutil.Process().memory_info().rss,
    }


def soak(rounds: int) -> dict[str, Any]:
    state = Soak()
    digests, left = [], []
    for number in range(rounds):
        digests.append(state.round(number))
        if number % CHECK_EVERY == CHECK_EVERY - 1:
            torch.cuda.synchronize()
            left.append(left_over())
    return {"digests": digests, "left": left}


def main() -> None:
    make_deterministic()
    rounds, limit = int(sys.argv[1]), 0
    for mode in ("off", "small"):
        if mode == "small" and len(sys.argv) > 2:
            torch.cuda.lms.set_host_limit(limit // DISK_SHARE * len(DEVICES))
            torch.cuda.lms.set_disk(sys.argv[2], 4 << 30)
        measured = measure(lambda: soak(rounds), mode, limit)
        if mode == "off":
            limit = limit_for(measured.memory, RATIO)
        read = sum(torch.cuda.lms.stats(i)["lms.disk_read.bytes"] for i in range(len(DEVICES)))
        row = {"mode": mode, "limit": limit, "memory": asdict(measured.memory), "read": read}
        print(json.dumps(row | measured.result), flush=True)


if __name__ == "__main__":
    main()
