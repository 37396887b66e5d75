"""Programs that are jobs in jobs.py: what they draw and switch is seen in their results."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch
from torch import Tensor, nn

try:
    import numpy
    import numpy.random
except ImportError:
    numpy = None

WIDTH = 256
LAYERS = 4  # 1 MB of parameters, and as much of gradients and of each of Adam's two states
STEPS = 4


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        linear = (nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        layers = (part for one in linear for part in (one, nn.Dropout(0.3)))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def digest(*tensors: Tensor) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def numpy_noise() -> float:
    return float(numpy.random.rand()) if numpy else 0.0


def steps(seed: int | None = None, count: int = STEPS, stream: bool = False) -> Iterator[Tensor]:
    """Trains a model with all kinds of random numbers; yields its losses, at the end a digest."""
    if seed is not None:
        torch.manual_seed(seed)
        random.seed(seed)
    own = torch.cuda.stream(torch.cuda.Stream()) if stream else contextlib.nullcontext()
    with own:
        model = Model().cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        losses = []
        for _ in range(count):
            x = torch.randn(32, WIDTH) * random.random() + numpy_noise()
            x = x.cuda() + torch.randn(32, WIDTH, device="cuda") * 0.1
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            losses.append(loss.detach())
            yield loss.detach()
        weights = [parameter.detach().sum() for parameter in model.parameters()]
        last = torch.stack([one.double() for one in [*losses, *weights]])
        torch.cuda.current_stream().synchronize()  # others read what is yielded on their streams
        yield last


def generator(*args: Any, **kwargs: Any) -> Generator[Tensor, None, str]:
    """Yields at the end of each step."""
    values = []
    for value in steps(*args, **kwargs):
        values.append(value)
        yield value
    return digest(*values)


def function(*args: Any, **kwargs: Any) -> str:
    """Says that a step ends."""
    values = []
    for value in steps(*args, **kwargs):
        values.append(value)
        torch.cuda.lms.step()
    return digest(*values)


def with_autocast(seed: int) -> Generator[Tensor, None, str]:
    """In bfloat16; gradients are off at times, which nobody else may notice."""
    with torch.autocast("cuda", dtype=torch.bfloat16):
        values = []
        for i, value in enumerate(steps(seed)):
            values.append(value)
            with torch.set_grad_enabled(i % 2 == 0):
                yield value
    return digest(*values)


def with_switches(seed: int) -> Generator[Tensor, None, str]:
    """In float64 by default, with switches of its own."""
    torch.set_default_dtype(torch.float64)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    values = []
    for value in steps(seed):
        assert torch.get_default_dtype() == torch.float64
        assert torch.backends.cuda.matmul.allow_tf32
        assert torch.backends.cudnn.benchmark
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        values.append(value)
        yield value
    return digest(*values)


def with_new_switches(seed: int) -> Generator[Tensor, None, str]:
    """With the newer switches for TF32, beside which the older ones cannot be read."""
    matmul = torch.backends.cuda.matmul
    if hasattr(torch._C, "_get_fp32_precision_getter"):
        matmul.fp32_precision = "tf32"
    values = []
    for value in steps(seed):
        if hasattr(torch._C, "_get_fp32_precision_getter"):
            assert matmul.fp32_precision == "tf32"
        values.append(value)
        yield value
    return digest(*values)


def without_switches(seed: int) -> Generator[Tensor, None, str]:
    """As a process is at its start."""
    values = []
    for value in steps(seed):
        assert torch.get_default_dtype() == torch.float32
        assert not torch.backends.cuda.matmul.allow_tf32
        assert not torch.backends.cudnn.benchmark
        assert not torch.are_deterministic_algorithms_enabled()
        assert not torch.is_autocast_enabled("cuda")
        assert torch.is_grad_enabled()
        values.append(value)
        yield value
    return digest(*values)


def to_its_end(program: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a job returns, without a pool."""
    result = program(*args, **kwargs)
    if not isinstance(result, Generator):
        return result
    while True:
        try:
            next(result)
        except StopIteration as end:
            return end.value
