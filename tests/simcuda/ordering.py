"""Programs about the order of work, run one after the other in a child process.

Each asserts what must hold in every mode and schedule. A wait that is left out must be seen.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
import traceback

import simcuda
import torch

N = 1 << 16
LONG = 60_000_000  # cycles of the simulated clock, in nanoseconds
ASYNC = os.environ["SIMCUDA_KERNELS"] == "async"
SCHEDULE = os.environ.get("SIMCUDA_SCHEDULE")


def a_kernel_needs_a_wait_for_a_copy_in() -> None:
    side, host = torch.cuda.Stream(), torch.ones(N).pin_memory()
    for waits in (False, True):
        device = torch.zeros(N, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(LONG)
            device.copy_(host, non_blocking=True)
        if waits:
            torch.cuda.current_stream().wait_stream(side)
        assert (device.sum().item() == N) == waits
        torch.cuda.synchronize()


def a_copy_out_needs_a_wait_for_a_kernel() -> None:
    side = torch.cuda.Stream()
    for waits in (False, True):
        device, host = torch.zeros(N, device="cuda"), torch.zeros(N).pin_memory()
        torch.cuda.synchronize()
        torch.cuda._sleep(LONG)
        device += 1
        if waits:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            host.copy_(device, non_blocking=True)
        side.synchronize()
        # Inline, the host itself waits for the addition.
        assert host.eq(1).all() == (waits or not ASYNC)
        torch.cuda.synchronize()


def overwriting_needs_a_wait_for_a_copy_out() -> None:
    side = torch.cuda.Stream()
    for waits in (False, True):
        device, host = torch.ones(N, device="cuda"), torch.zeros(N).pin_memory()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(LONG)
            host.copy_(device, non_blocking=True)
        if waits:
            torch.cuda.current_stream().wait_stream(side)
        device.zero_()
        torch.cuda.current_stream().synchronize()
        side.synchronize()
        assert host.eq(1).all() == waits


def the_schedule_alone_shows_a_missing_wait() -> None:
    side, device = torch.cuda.Stream(), torch.ones(N, device="cuda")
    host = torch.zeros(N).pin_memory()
    torch.cuda.synchronize()
    if SCHEDULE in ("late", "split"):  # the copy, or its rest, comes after the kernel
        with torch.cuda.stream(side):
            host.copy_(device, non_blocking=True)
        device.zero_()
        torch.cuda.current_stream().synchronize()
        side.synchronize()
        assert not host.eq(1).all()
    if SCHEDULE == "early" and ASYNC:  # the kernel comes after the copy
        device += 1
        with torch.cuda.stream(side):
            host.copy_(device, non_blocking=True)
        side.synchronize()
        assert host.eq(1).all()


def pageable_memory_may_be_reused_at_once() -> None:
    device = torch.empty(N, device="cuda")
    for i in range(10):
        host = torch.full((N,), float(i))
        device.copy_(host, non_blocking=True)
        host.fill_(-1)
        back = torch.empty(N)
        back.copy_(device, non_blocking=True)
        assert back.eq(i).all()


def who_polls_sees_the_end() -> None:
    side, host = torch.cuda.Stream(), torch.ones(N).pin_memory()
    with torch.cuda.stream(side):
        device = host.to("cuda", non_blocking=True)
        device += 1
        event = side.record_event()
    while not event.query():
        time.sleep(0.001)
    while not side.query():
        time.sleep(0.001)
    assert device.cpu().eq(2).all()


def the_legacy_default_stream_waits_for_blocking_streams() -> None:
    runtime = ctypes.CDLL(None)
    for flags, ordered in ((0, True), (1, not ASYNC)):
        handle = ctypes.c_void_p()
        assert runtime.cudaStreamCreateWithFlags(ctypes.byref(handle), flags) == 0
        device = torch.zeros(N, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.ExternalStream(handle.value)):
            torch.cuda._sleep(LONG)
            device += 1
        copy = device + 0  # on the legacy default stream
        torch.cuda.current_stream().synchronize()
        assert copy.eq(1).all() == ordered, flags
        torch.cuda.synchronize()
        assert runtime.cudaStreamDestroy(handle) == 0


def blocking_streams_wait_for_the_legacy_default_stream() -> None:
    runtime, handle = ctypes.CDLL(None), ctypes.c_void_p()
    assert runtime.cudaStreamCreate(ctypes.byref(handle)) == 0
    device, host = torch.zeros(N, device="cuda"), torch.zeros(N).pin_memory()
    torch.cuda._sleep(LONG)
    device += 1
    with torch.cuda.stream(torch.cuda.ExternalStream(handle.value)):
        host.copy_(device, non_blocking=True)
        torch.cuda.current_stream().synchronize()
    assert host.eq(1).all()
    del host, device  # their memory remembers the stream
    assert runtime.cudaStreamDestroy(handle) == 0


def the_per_thread_default_stream_is_per_thread() -> None:
    per_thread, idle = torch.cuda.ExternalStream(2), []  # cudaStreamPerThread
    with torch.cuda.stream(per_thread):
        torch.cuda._sleep(5 * LONG)
    thread = threading.Thread(target=lambda: idle.append(per_thread.query()))
    thread.start()
    thread.join()
    assert idle == [True] and not per_thread.query()
    torch.cuda.synchronize()


def host_functions_run_in_stream_order() -> None:
    seen, done = [], threading.Event()
    device, host = torch.zeros(4, device="cuda"), torch.zeros(4).pin_memory()
    torch.cuda._sleep(LONG)
    device += 1
    host.copy_(device, non_blocking=True)

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def function(_data: object) -> None:
        seen.append(host[0].item())
        done.set()

    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    assert ctypes.CDLL(None).cudaLaunchHostFunc(stream, function, None) == 0
    assert done.wait(60) and seen == [1.0]


def events_measure_time() -> None:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(20_000_000)
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) >= 20


def a_freed_block_is_not_poisoned_under_work_queued_before() -> None:
    total = torch.zeros(N, device="cuda")
    for i in range(50):
        total += torch.full((N,), float(i), device="cuda")  # freed while in use
    assert total.eq(sum(range(50))).all()
    side = torch.cuda.Stream()
    for i in range(10):
        block = torch.full((N,), float(i), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(1_000_000)
            copy = block.clone()
        block.record_stream(side)
        del block
        torch.full((N,), -1.0, device="cuda")
        side.synchronize()
        assert copy.eq(i).all()


def fresh_and_freed_memory_is_not_a_number() -> None:
    torch.cuda.empty_cache()
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        fresh = torch.empty(1 << 20, dtype=dtype, device="cuda")
        assert fresh.isnan().all(), dtype
        fresh.fill_(1)
        address = fresh.data_ptr()
        del fresh
        again = torch.empty(1 << 20, dtype=dtype, device="cuda")
        assert again.data_ptr() == address
        assert again.isnan().all(), dtype
        del again
        torch.cuda.empty_cache()


def main() -> None:
    """Runs them all; prints a JSON object of name and what went wrong, or ""."""
    results = {}
    for name, function in list(globals().items()):
        if name in ("main", "Event") or getattr(function, "__module__", "") != __name__:
            continue
        try:
            function()
            torch.cuda.synchronize()
            results[name] = ""
        except Exception:
            results[name] = traceback.format_exc()
    assert simcuda.stats().unsimulated_launches == 0, simcuda.unsimulated()
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
