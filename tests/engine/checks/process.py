"""Programs that end, or fork, at an awkward moment.

Usage: process.py on|off TIMES [SCENE...]

Each scene runs in a process forked before CUDA is used, to its very end: what is tested happens
while the interpreter is taken down. "off" shows what upstream does in the same place.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable

import harness
import torch
import torch.fx.experimental.symbolic_shapes  # for the simulated device: once for all scenes
from torch import nn

lms = torch.cuda.lms
MIB = 1 << 20
SCENES: dict[str, Callable[[], None]] = {}
# Python's from 3.12 on, where CUDA has started threads. To fork nevertheless is what is tested.
warnings.filterwarnings("ignore", message="This process .* is multi-threaded, use of fork")

KEPT: list[object] = []  # alive until the interpreter is taken down


def scene(function: Callable[[], None]) -> Callable[[], None]:
    SCENES[function.__name__] = function
    return function


def busy() -> list[torch.Tensor]:
    """More tensors than fit, with copies still under way."""
    tensors = [torch.full((MIB // 4,), float(i), device="cuda") for i in range(20)]
    return [tensor.mul_(2) for tensor in tensors]


def train() -> nn.Module:
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)]).cuda()
    for _ in range(2):
        model(torch.ones(16, 256, device="cuda")).sum().backward()
    return model


def in_child(body: Callable[[], None]) -> None:
    """Runs it in a forked process, which then ends as Python programs end."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except BaseException:
            import traceback

            traceback.print_exc()
            sys.exit(1)
        sys.exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0, f"the child ended with {status}"


@scene
def tensors_alive() -> None:
    KEPT.append(busy())


@scene
def tensors_alive_paged_out() -> None:
    KEPT.append(busy())
    torch.cuda.reclaim_inactive()


@scene
def tensors_held() -> None:
    KEPT.append(busy())
    KEPT[0][3].data_ptr()
    KEPT.append(torch.utils.dlpack.to_dlpack(KEPT[0][4]))


@scene
def model_and_graph_alive() -> None:
    model = train()
    KEPT.append((model, model(torch.ones(16, 256, device="cuda")).sum()))


@scene
def exception_after_backward() -> None:
    KEPT.append(train())
    raise KeyError("the program's own")


@scene
def exception_in_backward() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            raise KeyError("the program's own")

    KEPT.append(busy())
    x = KEPT[0][0].detach().requires_grad_()
    try:
        Fails.apply(x * 2).sum().backward()
    finally:
        # Autograd's thread takes the GIL once more to drop the error; a process that has begun to
        # end by then aborts, without LMS too. LMS shifts the moment, so it shows more often.
        time.sleep(0.5)


@scene
def system_exit_in_pin() -> None:
    KEPT.append(busy())
    with lms.pin(KEPT[0][0]):
        sys.exit(0)


@scene
def thread_ends_after_main() -> None:
    tensors = busy()
    done = threading.Event()

    def work() -> None:
        for _ in range(100):
            for tensor in tensors:
                tensor.add_(1)
        assert tensors[3].cpu()[0].item() == 106.0
        done.set()

    threading.Thread(target=work).start()
    atexit.register(lambda: print("done", done.is_set()))


@scene
def used_at_exit() -> None:
    KEPT.append(busy())

    def last_words() -> None:
        assert [t[7].item() for t in KEPT[0]] == [2.0 * i for i in range(20)]
        torch.cuda.reclaim_inactive()
        print("checked", lms.stats()["reclaimed"] > 0)

    atexit.register(last_words)


@scene
def disabled_at_exit() -> None:
    KEPT.append(busy()[:3])
    atexit.register(lambda: lms.set_enabled_lms(False))


def page_out_much() -> torch.Tensor:
    """As one of its slabs of host memory is made, the next one is ordered, 32 MiB too."""
    torch.cuda.set_limit_lms(48 * MIB)
    tensor = torch.zeros(8 * MIB, device="cuda").add_(1)
    torch.cuda.reclaim_inactive()
    assert not lms.is_resident(tensor) or not torch.cuda.get_enabled_lms()
    return tensor


@scene
def host_memory_on_order() -> None:
    KEPT.append(page_out_much())


@scene
def fork_with_host_memory_on_order() -> None:
    tensor = page_out_much()

    def body() -> None:
        lms.set_host_limit(1)
        with contextlib.suppress(RuntimeError):
            lms.set_enabled_lms(False)

    in_child(body)
    assert tensor[5].item() == 1


@scene
def several_devices_and_streams() -> None:
    for device in range(torch.cuda.device_count()):
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream()):
            KEPT.append(busy())


@scene
def cycle_with_tensors() -> None:
    """Freed by the garbage collector, or never."""
    loop: list[object] = [busy()]
    loop.append(loop)


@scene
def fork_frees_tensors() -> None:
    tensors = busy()
    torch.cuda.reclaim_inactive()
    keep = busy()

    def body() -> None:
        tensors.clear()
        keep.clear()
        assert (torch.arange(5.0) * 2).sum().item() == 20.0
        x = torch.ones(3, requires_grad=True)
        (x * x).sum().backward()
        assert not torch.cuda.get_enabled_lms()

    in_child(body)
    assert [t[5].item() for t in tensors] == [2.0 * i for i in range(20)]
    assert [t[5].item() for t in keep] == [2.0 * i for i in range(20)]


@scene
def fork_then_cuda_gives_upstreams_error() -> None:
    tensors = busy()

    def body() -> None:
        try:
            torch.ones(3, device="cuda")
        except RuntimeError as error:
            assert "forked subprocess" in str(error), error
        else:
            raise AssertionError("no error")
        for use in (
            lambda: tensors[0] + 1,
            lambda: tensors[0].data_ptr(),
            lambda: torch.cuda.reclaim_inactive(),
            lambda: lms.set_enabled_lms(True),
            lambda: lms.set_enabled_lms(False),
        ):
            with contextlib.suppress(RuntimeError):
                use()

    in_child(body)
    assert tensors[9][0].item() == 18.0


@scene
def fork_while_threads_compute() -> None:
    tensors = busy()
    stop = threading.Event()

    def work(part: list[torch.Tensor]) -> None:
        while not stop.is_set():
            for tensor in part:
                tensor.add_(0)

    threads = [threading.Thread(target=work, args=(tensors[i::2],)) for i in range(2)]
    for thread in threads:
        thread.start()

    def body() -> None:
        tensors.clear()
        os._exit(0)

    try:
        for _ in range(10):
            in_child(body)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert [t[5].item() for t in tensors] == [2.0 * i for i in range(20)]


def square(x: float) -> float:
    return float((torch.full((10,), x) * x)[0])


def square_on_device(x: float) -> float:
    torch.cuda.set_limit_lms(8 * MIB)
    lms.set_enabled_lms(True)
    tensors = busy()
    return float((tensors[int(x)] * tensors[int(x)])[0])


@scene
def multiprocessing_fork() -> None:
    KEPT.append(busy())
    with torch.multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(square, [1.0, 2.0, 3.0]) == [1.0, 4.0, 9.0]


@scene
def multiprocessing_spawn() -> None:
    KEPT.append(busy())
    with torch.multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(square_on_device, [1.0, 3.0]) == [4.0, 36.0]


@scene
def data_loader_workers() -> None:
    KEPT.append(busy())
    data = torch.utils.data.TensorDataset(torch.arange(20.0))
    loader = torch.utils.data.DataLoader(data, batch_size=5, num_workers=2, pin_memory=True)
    total = sum(float(batch.cuda().sum()) for (batch,) in loader)
    assert total == 190.0


@scene
def many_switches() -> None:
    KEPT.append([torch.full((MIB // 4,), float(i), device="cuda") for i in range(5)])
    for _ in range(8):
        lms.set_enabled_lms(False)
        lms.set_enabled_lms(True)
        torch.cuda.reclaim_inactive()
        KEPT[0][0].add_(1)
    assert KEPT[0][0][0].item() == 8.0


# What a scene writes, and its exit status where it is not 0.
ERROR = 'KeyError: "the program\'s own"\n'
STATUS = {"exception_after_backward": 1, "exception_in_backward": 1}
OUTPUT = {"thread_ends_after_main": "done True\n", "used_at_exit": "checked True\n"}


def is_right(name: str, status: int, output: str) -> bool:
    if name in STATUS:
        return status == STATUS[name] and output.endswith(ERROR)
    return status == 0 and output == OUTPUT.get(name, "")


def run_scenes(names: list[str], times: int) -> str | None:
    """Runs the scenes; in the process that shall play one, returns its name."""
    for name in names:
        harness.report(name, "started")
        for number in range(times):
            reading, writing = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.dup2(writing, 1)
                os.dup2(writing, 2)
                os.close(reading)
                os.close(writing)
                return name
            os.close(writing)
            with os.fdopen(reading) as pipe:
                output = pipe.read()
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if not is_right(name, status, output):
                detail = f"time {number + 1}: exit status {status}\n{output}"
                harness.report(name, "failed", detail)
                break
        else:
            harness.report(name, "passed")
    return None


if __name__ == "__main__":
    mode, times, *names = sys.argv[1:]
    chosen = run_scenes(names or list(SCENES), int(times))
    if chosen:
        torch.cuda.set_limit_lms(8 * MIB)
        lms.set_enabled_lms(mode == "on")
        SCENES[chosen]()
