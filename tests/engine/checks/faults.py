"""Any single call of the CUDA runtime may fail: a program goes on right, or says what failed.

Usage: faults.py on|chaos TRIED FUNCTION...

For each function and up to TRIED of its calls in the program, a forked process lets that call
fail. The program is a list of steps on device tensors, each mirrored on the host. After a step
that raises, every tensor must be as it was, and the step must succeed when it is tried again.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable

import simcuda
import torch
from harness import assert_same, lms, report

MIB = 1 << 20
LIMIT = 6 * MIB
COUNT = 10  # tensors
DRIVER_REFUSES = "cudaHostRegister:1-,cudaHostAlloc:1-"  # to page-lock anything
LENGTH = MIB // 4  # of each, floats: 1 MiB is the largest block of the allocator's small segments

Tensors = dict[str, torch.Tensor]
Step = tuple[str, Callable[[Tensors], None]]


def steps() -> list[Step]:
    """They run on device tensors and on their mirrors alike."""

    def gradient(t: Tensors) -> None:
        x = t["t1"].detach().requires_grad_()
        ((x * 2 + t["t2"]) * x).sum().backward()
        t["gradient"] = x.grad

    def optimizer(t: Tensors) -> None:
        # On copies: a list operator that fails half way has changed some of its tensors.
        parameters = [t["t3"].clone(), t["t4"].clone()]
        torch._foreach_add_(parameters, [t["t5"], t["t6"]], alpha=2)
        t["p3"], t["p4"] = parameters

    return [
        ("add", lambda t: t.__setitem__("sum", t["t0"] + t["t7"])),
        ("in place", lambda t: t["t8"].mul_(3)),
        ("view", lambda t: t["t9"][100:200].zero_()),
        ("gradient", gradient),
        ("list", optimizer),
        ("read", lambda t: t.__setitem__("value", t["t6"].sum().cpu())),
        ("drop", lambda t: t.pop("sum")),
        ("cat", lambda t: t.__setitem__("cat", torch.cat([t["t0"][:9], t["t5"][:9]]))),
    ]


def scenario(mode: str, plan: str) -> None:
    hosts = {f"t{i}": torch.full((LENGTH,), float(i)) for i in range(COUNT)}
    torch.cuda.init()
    torch.cuda.set_limit_lms(LIMIT)
    lms.set_enabled_lms(True)
    torch.ops.lms.set_chaos(mode == "chaos")
    simcuda.set_faults(plan)
    before = simcuda.calls()
    device: Tensors = {}
    for name, host in hosts.items():
        tried(
            plan, f"upload {name}", lambda n=name, h=host: device.__setitem__(n, h.cuda()), {}, {}
        )
    for name, step in steps():
        tried(plan, name, lambda s=step: s(device), device, hosts)
        step(hosts)
    tried(plan, "page out", lambda: torch.cuda.reclaim_inactive(), device, hosts)
    tried(plan, "hold", lambda: device["t3"].data_ptr(), device, hosts)
    tried(plan, "pin", lambda: pinned(device["t2"]), device, hosts)
    simcuda.set_faults("")
    same(device, hosts)
    # A slab that is reserved ahead, as the later ones are, may never come to be needed.
    if plan == DRIVER_REFUSES:
        assert eventually(has_pageable), "nobody knows that the driver refused"
    elif plan.startswith("cudaHostRegister") and came(plan, before):
        assert eventually(lambda: called("cudaHostAlloc") > before.get("cudaHostAlloc", 0))
        assert not has_pageable()
    assert lms.stats()["pinned.all.current"] == 1  # t3
    assert torch.cuda.memory_reserved() <= LIMIT
    assert not simcuda.unsimulated()


def came(plan: str, before: dict[str, int]) -> bool:
    """Whether the call that shall fail was made: some come more or less often, as copies end."""
    name, number = plan.split(":")
    return called(name) - before.get(name, 0) >= int(number)


def called(function: str) -> int:
    return simcuda.calls().get(function, 0)


def has_pageable() -> bool:
    stats = lms.stats()
    return stats["lms.host_bytes.reserved"] > stats["lms.host_bytes.page_locked"]


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether it becomes true: threads in the background make host memory."""
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def pinned(tensor: torch.Tensor) -> None:
    with lms.pin(tensor):
        pass


def same(device: Tensors, hosts: Tensors) -> None:
    assert set(device) == set(hosts)
    for name, tensor in device.items():
        try:
            assert_same(tensor, hosts[name])
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


def tried(
    plan: str, name: str, step: Callable[[], object], device: Tensors, hosts: Tensors
) -> None:
    """Runs a step; if the injected failure makes it raise, the tensors must be as they were."""
    try:
        step()
    except RuntimeError as error:
        message = str(error)
        assert not plan.startswith("cudaHostRegister"), f"no other memory was used: {message}"
        assert message and "INTERNAL ASSERT" not in message, f"{name}: {message}"
        simcuda.set_faults("")
        print(f"  {name}: {type(error).__name__}: {message.splitlines()[0]}", flush=True)
        same(device, hosts)
        step()


def forked(body: Callable[[], None]) -> tuple[int, str]:
    """Exit status (negative: a signal) and output of a function in a process of its own."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        try:
            body()
            status = 0
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        output = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), output


def calls(mode: str, functions: list[str]) -> dict[str, int]:
    """How often a run without faults calls each function."""

    def body() -> None:
        before = simcuda.calls()
        scenario(mode, "")
        after = simcuda.calls()
        for name in functions:
            print("CALLS", name, after.get(name, 0) - before.get(name, 0))

    status, output = forked(body)
    assert status == 0, output
    lines = [line.split() for line in output.splitlines() if line.startswith("CALLS")]
    return {name: int(count) for _, name, count in lines}


def chosen(count: int, tried: int) -> list[int]:
    """Which of a function's calls shall fail: all, or evenly spread ones."""
    if count <= tried:
        return list(range(1, count + 1))
    return sorted({1 + round(i * (count - 1) / (tried - 1)) for i in range(tried)})


if __name__ == "__main__":
    mode, tried_calls, *functions = sys.argv[1:]
    for name, count in calls(mode, functions).items():
        assert count, f"the program never calls {name}: nothing would be tested"
        cases = [f"{name}:{call}" for call in chosen(count, int(tried_calls))]
        for case in cases + [DRIVER_REFUSES] * (name == "cudaHostRegister"):
            report(case, "started")
            status, output = forked(lambda plan=case: scenario(mode, plan))
            report(case, "failed" if status else "passed", f"exit status {status}\n{output}")
