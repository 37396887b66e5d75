"""Steps of an optimizer on the host's processors, each under the rest of the backward pass.

State that stays on the host need not be copied to the device and back: the gradient goes to the
host, and the new parameter comes back. PyTorch's own fused kernels for CPUs step a twin of each
parameter in page-locked memory, in one thread that does nothing else. It asks for nothing of CUDA
but to wait for gradients. All copies are queued by the threads of the program, at points that do
not depend on how fast anybody is: so LMS sees the same operators in each step.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.optim import SGD, Adagrad, Adam, AdamW
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ._lms_host_speed import bind, host_group, processors_near, state_size, why_slower
from ._lms_log import logger
from ._lms_stepping import SteppingInBackward, check_optimizer

_SUPPORTED = (Adam, AdamW, SGD, Adagrad)  # PyTorch has fused kernels of them for CPUs

# Bytes of gradients that wait for their steps. The program runs ahead of the device by these.
_AHEAD = 1 << 30

# Page-locked memory is asked for in pieces of this size: PyTorch rounds up to a power of two.
_PIECE = 4 << 30
_ALIGNMENT = 64


class SteppingOnHost(SteppingInBackward):
    r"""An optimizer whose steps run on the host, by :func:`lms.step_on_host`."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Iterable[torch.Tensor],
        worker: ThreadPoolExecutor,
    ) -> None:
        self._worker = worker
        self._process = os.getpid()
        # What follows is changed by the threads of several devices in a backward pass.
        self._lock = threading.RLock()
        self._jobs: deque[_Job] = deque()  # in the order in which the worker does them
        self._streams: dict[torch.device, _Streams] = {}
        self._uploading: set[torch.device] = set()  # since the last step
        self._hosted = {
            parameter: _Hosted(twin)
            for parameter, twin in worker.submit(_make_twins, list(parameters)).result().items()
        }
        self._loaded: dict[torch.Tensor, dict[str, Any]] = {}  # while a checkpoint is loaded
        moved = {
            parameter: self._to_host(parameter, optimizer.state[parameter])
            for parameter in self._hosted
            if parameter in optimizer.state
        }
        super().__init__(optimizer)  # not before host memory was enough
        optimizer.state.update(moved)
        self._handles += [
            optimizer.register_step_pre_hook(self._begin_step),
            optimizer.register_state_dict_pre_hook(lambda _: self._finish()),
            optimizer.register_load_state_dict_pre_hook(self._begin_load),
            optimizer.register_load_state_dict_post_hook(self._end_load),
        ]

    def remove(self) -> None:
        """Let ``optimizer.step()`` step as before, on the device."""
        self._finish()
        super().remove()
        for parameter in self._hosted:
            group = self._options(parameter)
            keeps_count = not (group.get("fused") or group.get("capturable"))
            state = self._optimizer.state[parameter]
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and not (name == "step" and keeps_count):
                    state[name] = value.to(parameter.device)
        self._hosted.clear()
        self._worker.shutdown(wait=False)

    # --- a step ---

    def _apply(self, parameter: torch.Tensor) -> None:
        hosted = self._hosted.get(parameter)
        if hosted is None:
            super()._apply(parameter)
            return
        gradient = parameter.grad
        assert gradient is not None
        if gradient.layout is not torch.strided:
            raise RuntimeError("sparse gradients cannot step on the host")
        with self._lock:
            while self._jobs and sum(job.size for job in self._jobs) + gradient.nbytes > _AHEAD:
                self._upload_first()
            staged, is_ready = self._download(parameter, hosted, gradient)
            hosted.version = parameter._version + 1  # which this step will count as
            alone = self._alone(
                host_group(self._options(parameter), hosted.twin),
                defaultdict(dict, {hosted.twin: self._optimizer.state[parameter]}),
            )
            done = self._worker.submit(
                _step_twin, self._bare_step, alone, hosted.twin, staged, is_ready
            )
            self._jobs.append(_Job(parameter, hosted.twin, gradient.nbytes, done))

    def _download(
        self, parameter: torch.Tensor, hosted: _Hosted, gradient: torch.Tensor
    ) -> tuple[torch.Tensor, torch.cuda.Event]:
        device, twin = parameter.device, hosted.twin
        if device not in self._streams:
            self._streams[device] = _Streams(torch.cuda.Stream(device), torch.cuda.Stream(device))
        if gradient.stride() != twin.stride():  # a copy between layouts would block the host
            gradient = torch.empty_strided(
                twin.size(), twin.stride(), dtype=twin.dtype, device=device
            ).copy_(gradient)
        staged = torch.empty_like(twin, pin_memory=True)
        is_ready = torch.cuda.Event(blocking=True)
        down = self._streams[device].down
        down.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(down):
            if parameter._version != hosted.version:  # the program has written to it
                twin.copy_(parameter, non_blocking=True)
            staged.copy_(gradient, non_blocking=True)
            is_ready.record(down)
        gradient.record_stream(down)  # it is let go while it is copied
        return staged, is_ready

    def _upload_first(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError("the backward pass began before fork: its steps are the parent's")
        job = self._jobs[0]
        # The twin is to be copied when it has been stepped, and only the host knows when that is.
        # An interrupt leaves the job where it is.
        wait([job.done])
        self._jobs.popleft()
        job.done.result()
        # The device has done all that it was to do with the parameter before: the worker has waited
        # for a copy that was queued behind that.
        device = job.parameter.device
        with torch.cuda.stream(self._streams[device].up), torch.no_grad():
            job.parameter.data.copy_(job.twin, non_blocking=True)
        self._uploading.add(device)

    def _finish(self) -> None:
        """To the last parameter. The program's stream waits for the copies, the host does not."""
        with self._lock:
            while self._jobs:
                self._upload_first()
            while self._uploading:
                device = self._uploading.pop()
                torch.cuda.current_stream(device).wait_stream(self._streams[device].up)

    def _begin_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Before ``optimizer.step()``, which has a look at gradients after the closure, if any."""
        self._step_rest()
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            return None

        def call() -> Any:
            loss = closure()
            self._step_rest()
            return loss

        return (args[0], call), {}

    @torch.no_grad()
    def _step_rest(self) -> None:
        """With gradients that were accumulated, and that the last backward pass did not reach."""
        for parameter in self._hosted:
            if parameter.grad is not None:
                self._step(parameter)
                parameter.grad = None

    def _end_step(self, optimizer: torch.optim.Optimizer, *args: Any) -> None:
        try:
            self._finish()
        finally:
            super()._end_step(optimizer, *args)

    # --- checkpoints: without these hooks PyTorch would load the state to the device ---

    def _begin_load(
        self, optimizer: torch.optim.Optimizer, checkpoint: dict[str, Any]
    ) -> dict[str, Any]:
        self._finish()
        numbers = chain.from_iterable(group["params"] for group in checkpoint["param_groups"])
        parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
        rest = dict(checkpoint["state"])
        self._loaded = {
            parameter: rest.pop(number)
            for number, parameter in zip(numbers, parameters)
            if parameter in self._hosted and number in rest
        }
        return {**checkpoint, "state": rest}

    def _end_load(self, optimizer: torch.optim.Optimizer) -> None:
        while self._loaded:
            parameter, state = self._loaded.popitem()
            optimizer.state[parameter] = self._to_host(parameter, state)

    def _to_host(self, parameter: torch.Tensor, state: dict[str, Any]) -> dict[str, Any]:
        twin = self._hosted[parameter].twin
        moved = dict(state)
        for name, value in state.items():
            if name == "step":
                moved[name] = torch.tensor(float(value), dtype=torch.float32)
            elif isinstance(value, torch.Tensor):
                # Memory is near to the thread that writes to it first.
                moved[name] = self._worker.submit(torch.zeros_like, twin).result().copy_(value)
        return moved


@dataclass(eq=False)
class _Hosted:
    twin: torch.Tensor
    version: int | None = None  # of the parameter that had the twin's bytes


class _Job(NamedTuple):
    parameter: torch.Tensor
    twin: torch.Tensor
    size: int
    done: Future[None]


class _Streams(NamedTuple):
    down: torch.cuda.Stream
    up: torch.cuda.Stream


def step_on_host(
    optimizer: torch.optim.Optimizer, device_bytes: int, even_if_slower: bool
) -> SteppingOnHost | None:
    """See torch.cuda.lms.step_on_host."""
    check_optimizer(optimizer)
    hosted = _choose(optimizer, device_bytes)
    device = next(iter(hosted)).device if hosted else None
    near = processors_near(device) if device else set()
    threads = torch.get_num_threads()
    worker = ThreadPoolExecutor(1, "lms-step-on-host", bind, (near,))
    try:
        if hosted and not even_if_slower and (reason := why_slower(optimizer, hosted, worker)):
            worker.shutdown(wait=False)
            logger.warning("step_on_host leaves the optimizer as it is: %s", reason)
            return None
        stepping = SteppingOnHost(optimizer, hosted, worker)
    finally:
        if near:
            torch.set_num_threads(threads)  # of threads to come, to which the worker's went
    size = sum(parameter.nbytes for parameter in hosted)
    logger.info("the steps of %.1f GB of parameters run on the host", size / 1e9)
    return stepping


def _choose(
    optimizer: torch.optim.Optimizer, device_bytes: int
) -> dict[torch.Tensor, dict[str, Any]]:
    """The parameters to step on the host, and their groups.

    What stays on the device are the first ones, whose gradients come last: nothing is left to
    compute that the copies of these could hide behind.
    """
    if type(optimizer) not in _SUPPORTED:
        names = ", ".join(kind.__name__ for kind in _SUPPORTED)
        raise ValueError(
            f"{type(optimizer).__name__} cannot step on the host. These can, since PyTorch has "
            f"fused kernels of them for CPUs: {names}"
        )
    chosen = {}
    for group in optimizer.param_groups:
        if group["differentiable"]:
            raise ValueError("fused kernels are not differentiable")
        if isinstance(group["lr"], torch.Tensor) and group["lr"].is_cuda:
            raise ValueError("the learning rate is on the device: steps on the host need a number")
        for parameter in group["params"]:
            if is_traceable_wrapper_subclass(parameter):
                raise ValueError(
                    f"a {type(parameter).__name__} cannot step on the host, such as a weight that "
                    "is sharded by fully_shard. Use step_in_backward."
                )
            if not (parameter.requires_grad and parameter.is_cuda and _is_plain(parameter)):
                continue
            size = parameter.numel() * state_size(optimizer, group, parameter.dtype)
            if size <= device_bytes:
                device_bytes -= size
            else:
                device_bytes = 0
                chosen[parameter] = group
    return chosen


def _is_plain(parameter: torch.Tensor) -> bool:
    """Whether there are fused kernels for it, which need numbers side by side."""
    dense = torch.empty_like(parameter, device="meta")
    return parameter.is_floating_point() and parameter.stride() == dense.stride()


def _step_twin(
    bare_step: Callable[..., Any],
    alone: Any,
    twin: torch.Tensor,
    gradient: torch.Tensor,
    is_ready: torch.cuda.Event,
) -> None:
    """The worker's job."""
    is_ready.synchronize()  # the host is about to read what the device copies
    twin.grad = gradient
    try:
        bare_step(alone)
    finally:
        twin.grad = None


def _make_twins(parameters: list[torch.Tensor]) -> dict[torch.Tensor, torch.Tensor]:
    """Room for each one's bytes in page-locked memory near to this thread, in few pieces."""
    sizes = [-(-one.nbytes // _ALIGNMENT) * _ALIGNMENT for one in parameters]
    twins, left = {}, sum(sizes)
    piece, begin = torch.empty(0, dtype=torch.uint8), 0
    for parameter, size in zip(parameters, sizes):
        if begin + size > len(piece):
            length = max(size, min(left, _PIECE))
            piece, begin = torch.empty(length, dtype=torch.uint8, pin_memory=True), 0
        flat = piece[begin : begin + parameter.nbytes].view(parameter.dtype)
        twins[parameter] = flat.as_strided(parameter.size(), parameter.stride())
        begin, left = begin + size, left - size
    return twins
