"""Only streams, events and synchronisation order work: a missing wait is seen."""

from __future__ import annotations

import pytest

SCHEDULES = [None, "early", "late", "split"]


@pytest.mark.parametrize("kernels", ["inline", "async"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_kernel_needs_a_wait_for_a_copy_in(simulate, kernels, schedule):
    simulate(
        """
        import torch
        side = torch.cuda.Stream()
        host = torch.ones(1 << 18).pin_memory()
        for waits in (False, True):
            device = torch.zeros(1 << 18, device="cuda")
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                torch.cuda._sleep(100_000_000)
                device.copy_(host, non_blocking=True)
            if waits:
                torch.cuda.current_stream().wait_stream(side)
            right = device.sum().item() == 1 << 18
            assert right == waits, (right, waits)
            torch.cuda.synchronize()
        """,
        kernels=kernels,
        schedule=schedule,
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_copy_out_needs_a_wait_for_a_kernel(simulate, schedule):
    simulate(
        """
        import torch
        side = torch.cuda.Stream()
        for waits in (False, True):
            device = torch.zeros(1 << 18, device="cuda")
            host = torch.zeros(1 << 18).pin_memory()
            torch.cuda.synchronize()
            torch.cuda._sleep(100_000_000)
            device += 1
            if waits:
                side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                host.copy_(device, non_blocking=True)
            side.synchronize()
            right = host.eq(1).all().item()
            assert right == waits, (right, waits)
            torch.cuda.synchronize()
        """,
        kernels="async",
        schedule=schedule,
    )


@pytest.mark.parametrize("schedule", ["late", "split"])
def test_late_copies_see_what_overwrote_their_source(simulate, schedule):
    simulate(
        """
        import torch
        side = torch.cuda.Stream()
        for waits in (False, True):
            device = torch.ones(1 << 18, device="cuda")
            host = torch.zeros(1 << 18).pin_memory()
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                host.copy_(device, non_blocking=True)
            if waits:
                torch.cuda.current_stream().wait_stream(side)
            device.zero_()
            torch.cuda.current_stream().synchronize()
            side.synchronize()
            right = host.eq(1).all().item()
            assert right == waits, (right, waits)
        """,
        schedule=schedule,
        kernels="async",
    )


def test_early_runs_kernels_late(simulate):
    simulate(
        """
        import torch
        device = torch.zeros(1 << 18, device="cuda")
        host = torch.zeros(1 << 18).pin_memory()
        torch.cuda.synchronize()
        device += 1
        with torch.cuda.stream(torch.cuda.Stream()) as side:
            host.copy_(device, non_blocking=True)
            torch.cuda.current_stream().synchronize()
        assert host.eq(0).all()  # nobody waited for the addition
        assert device.eq(1).all()
        """,
        kernels="async",
        schedule="early",
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_pageable_memory_may_be_reused_at_once(simulate, schedule):
    simulate(
        """
        import torch
        device = torch.empty(1 << 18, device="cuda")
        for i in range(20):
            host = torch.full((1 << 18,), float(i))
            device.copy_(host, non_blocking=True)
            host.fill_(-1)
            back = torch.empty(1 << 18)
            back.copy_(device, non_blocking=True)
            assert back.eq(i).all()
        """,
        kernels="async",
        schedule=schedule,
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_who_polls_sees_the_end(simulate, schedule):
    simulate(
        """
        import torch, time
        side = torch.cuda.Stream()
        host = torch.ones(1 << 18).pin_memory()
        with torch.cuda.stream(side):
            device = host.to("cuda", non_blocking=True)
            device += 1
            event = side.record_event()
        while not event.query():
            time.sleep(0.001)
        while not side.query():
            time.sleep(0.001)
        assert device.cpu().eq(2).all()
        """,
        kernels="async",
        schedule=schedule,
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_legacy_default_stream_waits_for_blocking_streams(simulate, schedule):
    simulate(
        """
        import ctypes, torch
        torch.cuda.init()
        runtime = ctypes.CDLL(None)
        for flags, ordered in ((0, True), (1, False)):
            handle = ctypes.c_void_p()
            assert runtime.cudaStreamCreateWithFlags(ctypes.byref(handle), flags) == 0
            stream = torch.cuda.ExternalStream(handle.value)
            device = torch.zeros(1 << 18, device="cuda")
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                torch.cuda._sleep(100_000_000)
                device += 1
            copy = device + 0  # on the legacy default stream
            torch.cuda.current_stream().synchronize()
            assert copy.eq(1).all().item() == ordered, flags
            torch.cuda.synchronize()
            assert runtime.cudaStreamDestroy(handle) == 0
        """,
        kernels="async",
        schedule=schedule,
    )


def test_the_per_thread_default_stream_is_per_thread(simulate):
    simulate(
        """
        import threading, torch
        per_thread = torch.cuda.ExternalStream(2)  # cudaStreamPerThread
        with torch.cuda.stream(per_thread):
            torch.cuda._sleep(300_000_000)
        idle = []
        def ask():
            idle.append(per_thread.query())
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        assert idle == [True] and not per_thread.query()
        torch.cuda.synchronize()
        """
    )


def test_host_functions_run_in_stream_order(simulate):
    simulate(
        """
        import ctypes, threading, torch
        torch.cuda.init()
        seen, done = [], threading.Event()
        device = torch.zeros(4, device="cuda")
        host = torch.zeros(4).pin_memory()
        torch.cuda._sleep(50_000_000)
        device += 1
        host.copy_(device, non_blocking=True)
        @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        def function(_data):
            seen.append(host[0].item())
            done.set()
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        assert ctypes.CDLL(None).cudaLaunchHostFunc(stream, function, None) == 0
        assert done.wait(60) and seen == [1.0]
        """,
        kernels="async",
        schedule="late",
    )


def test_events_measure_time(simulate):
    simulate(
        """
        import torch
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.cuda._sleep(20_000_000)
        end.record()
        end.synchronize()
        assert start.elapsed_time(end) >= 20
        """
    )


def test_bandwidth_bounds_the_copies_of_one_direction(simulate):
    simulate(
        """
        import torch
        host = torch.ones(8 << 20, dtype=torch.uint8).pin_memory()
        device = torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        device.copy_(host, non_blocking=True)
        end.record()
        end.synchronize()
        assert start.elapsed_time(end) >= 80, start.elapsed_time(end)  # 8 MiB at 100 MiB/s
        """,
        copy_bandwidth=100 << 20,
    )
