"""Capacity, patterns in memory, page-locked memory, what an address is."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import pytest
import simcuda


def test_a_device_holds_its_capacity_and_no_more(simulate):
    simulate(
        """
        import torch, simcuda
        free, total = torch.cuda.mem_get_info()
        assert total == 64 << 20, total
        kept = torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
        try:
            torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError:
            pass
        else:
            raise AssertionError("70 MiB in 64 MiB")
        del kept
        torch.empty(60 << 20, dtype=torch.uint8, device="cuda")
        free, total = torch.cuda.mem_get_info()
        assert free == total - simcuda.stats().device_bytes
        assert 60 << 20 <= simcuda.stats().peak_device_bytes <= 64 << 20
        torch.cuda.empty_cache()
        simcuda.reset_peak()
        assert simcuda.stats().peak_device_bytes == simcuda.stats().device_bytes == 0
        """,
        capacity="64M",
    )


def test_devices_have_their_own_memory(simulate):
    simulate(
        """
        import torch, simcuda
        assert torch.cuda.device_count() == 2
        there = torch.ones(48 << 20, dtype=torch.uint8, device="cuda:1")
        here = torch.ones(48 << 20, dtype=torch.uint8, device="cuda:0")
        assert simcuda.stats(0).device_bytes == simcuda.stats(1).device_bytes == 48 << 20
        small = torch.arange(12.0, device="cuda:0").view(3, 4)
        moved = small.t().to("cuda:1")
        assert moved.device.index == 1 and moved.cpu().equal(small.cpu().t())
        try:
            small + moved.t()
        except RuntimeError as error:
            assert "same device" in str(error), error
        else:
            raise AssertionError("added tensors of two devices")
        """,
        capacity="64M",
        devices=2,
    )


@pytest.mark.parametrize("cublas", [False, True])
def test_each_thread_that_multiplies_takes_a_workspace(simulate, cublas):
    """Which stays. Of cuBLAS, from the caching allocator."""
    simulate(
        f"""
        import torch
        factor = torch.ones(2, 2, device="cuda", requires_grad=True)
        before = torch.cuda.memory_allocated()
        (factor @ factor).sum()
        first = torch.cuda.memory_allocated() - before
        (factor @ factor).sum().backward()  # on another thread
        factor.grad = None
        assert first == (3 << 20) * {cublas}
        assert torch.cuda.memory_allocated() - before == 2 * first
        """,
        cublas=cublas,
        base=os.environ
        | {"CUBLAS_WORKSPACE_CONFIG": ":1024:3", "TORCH_CUBLAS_WORKSPACE_CACHE": "1"},
    )


@pytest.mark.parametrize(("poison", "kept"), [(0, True), (1, True), (2, False)])
def test_a_freed_block_keeps_its_numbers_unless_poisoned(simulate, poison, kept):
    simulate(
        f"""
        import torch
        block = torch.ones(1 << 20, device="cuda")
        del block
        assert torch.empty(1 << 20, device="cuda").eq(1).all().item() is {kept}
        """,
        poison=poison,
    )


def test_new_memory_is_at_a_new_address_and_not_a_number(simulate):
    """Also when its pages are those of memory that was freed."""
    simulate(
        """
        import ctypes, resource, torch
        torch.cuda.init()
        seen = set()
        for _ in range(40):
            x = torch.empty(16 << 20, dtype=torch.float16, device="cuda")
            seen.add(x.data_ptr())
            assert x[:: 1 << 16].cpu().isnan().all()
            x.fill_(1)
            del x
            torch.cuda.empty_cache()
        assert len(seen) == 40
        late = (ctypes.c_uint16 * 2).from_address(max(seen))
        assert list(late) == [0x7FFB] * 2, late  # what was freed last is there, with its pattern
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        assert used < 1200, used  # MiB: all of them are 1,280
        """,
        capacity="2G",
    )


def test_page_locked_memory_is_counted_and_recognised(simulate):
    simulate(
        """
        import ctypes, torch, simcuda
        torch.cuda.init()
        locked = torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True)
        assert locked.is_pinned() and not torch.empty(5).is_pinned()
        assert simcuda.stats().page_locked_bytes == 1 << 20

        class Attributes(ctypes.Structure):
            _fields_ = [("type", ctypes.c_int), ("device", ctypes.c_int),
                        ("device_pointer", ctypes.c_void_p), ("host_pointer", ctypes.c_void_p),
                        ("more", ctypes.c_long * 8)]
        def kind(address):
            attributes = Attributes()
            function = ctypes.CDLL(None).cudaPointerGetAttributes
            assert function(ctypes.byref(attributes), ctypes.c_void_p(address)) == 0
            return attributes.type, attributes.device
        on_device = torch.empty(100, device="cuda")
        assert kind(on_device.data_ptr() + 8) == (2, 0)
        assert kind(locked.data_ptr() + 5)[0] == 1
        pageable = torch.empty(1 << 20)
        assert kind(pageable.data_ptr())[0] == 0
        runtime = torch.cuda.cudart()
        assert runtime.cudaHostRegister(pageable.data_ptr(), 4 << 20, 0) == 0
        assert pageable.is_pinned()
        assert simcuda.stats().page_locked_bytes == 5 << 20
        assert runtime.cudaHostUnregister(pageable.data_ptr()) == 0
        assert not pageable.is_pinned()
        """
    )


def test_copies_outside_an_allocation_are_refused(simulate):
    simulate(
        """
        import ctypes, torch
        x = torch.zeros(1 << 20, device="cuda")
        host = torch.zeros(16 << 20)
        copy = ctypes.CDLL(None).cudaMemcpy
        copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        assert copy(host.data_ptr(), x.data_ptr(), 4 << 20, 2) == 0
        assert copy(host.data_ptr(), x.data_ptr(), 64 << 20, 2) == 1   # too long
        assert copy(host.data_ptr(), x.data_ptr(), 4 << 20, 1) == 1    # wrong direction
        ctypes.CDLL(None).cudaGetLastError()
        """
    )


SHARER = """
import ctypes, sys, torch
runtime = ctypes.CDLL(None)
torch.cuda.init()
for line in sys.stdin:
    address = ctypes.c_void_p()
    refused = runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(int(line) << 20)) != 0
    runtime.cudaGetLastError()
    free, total = torch.cuda.mem_get_info()
    print(refused, free >> 20, total >> 20, torch.cuda.get_device_properties(0).uuid, flush=True)
"""


@contextlib.contextmanager
def sharers(build_dir, *environments, **settings):
    """Processes with variables of their own."""
    processes = []
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    try:
        for variables in environments:
            environment = simcuda.environment(build_dir, capacity="64M", **settings) | variables
            processes.append(
                subprocess.Popen([sys.executable, "-c", SHARER], env=environment, **pipes)
            )
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def take(process, mebibytes):
    """Whether it was refused, how much is free then, and the UUID of the device."""
    process.stdin.write(f"{mebibytes}\n")
    process.stdin.flush()
    refused, free, total, uuid = process.stdout.readline().split()
    assert total == "64"
    return refused == "True", int(free), uuid


@pytest.mark.parametrize(
    "settings", [{"kernels": "inline"}, {"kernels": "timed", "card": "A100-SXM-40GB"}]
)
def test_processes_that_name_a_file_share_the_memory(build_dir, tmp_path, settings):
    alone = {"SIMCUDA_SHARED": ""}
    with sharers(build_dir, {}, {}, alone, shared=tmp_path / "card", **settings) as processes:
        first, second, other = processes
        *taken, uuid = take(first, 40)
        assert taken == [False, 24]
        assert take(second, 30) == (True, 24, uuid)
        assert take(second, 20) == (False, 4, uuid)
        assert take(first, 5) == (True, 4, uuid)
        assert take(other, 60) == (False, 4, "00000000-0000-0000-0000-000000000000")
        first.kill()
        first.wait()
        assert take(second, 40) == (False, 4, uuid)


def test_processes_share_the_device_that_both_see(build_dir, tmp_path):
    visible = [{"CUDA_VISIBLE_DEVICES": numbers} for numbers in ("1", "0", "1,0")]
    with sharers(build_dir, *visible, devices=2, shared=tmp_path / "card") as processes:
        first, other, second = processes
        *taken, uuid = take(first, 40)
        assert taken == [False, 24]
        refused, free, others = take(other, 60)
        assert (refused, free) == (False, 4) and others != uuid
        assert take(second, 30) == (True, 24, uuid)


VISIBLE = """
import ctypes, os, sys
runtime = ctypes.CDLL(None)
for numbers in sys.argv[1:]:
    if os.fork() == 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = numbers  # before the first use of CUDA
        count, name, seen = ctypes.c_int(), ctypes.create_string_buffer(32), []
        error = runtime.cudaGetDeviceCount(ctypes.byref(count))
        assert error == (0 if count.value else 100), error  # 100: no device
        for device in range(count.value):
            assert runtime.cudaDeviceGetPCIBusId(name, 32, device) == 0
            seen.append(int(name.value[5:7]) - 1)
        assert runtime.cudaSetDevice(count.value) == 101  # no such device
        print(seen, flush=True)
        os._exit(0)
    os.wait()
"""


def test_a_program_sees_the_devices_that_it_names(build_dir):
    seen = {
        "0,1,2": [0, 1, 2],
        "2,0": [2, 0],
        "1,7,2": [1],  # CUDA stops at what is not there
        "-1": [],
        "": [],
        "1,1": [],
    }
    environment = simcuda.environment(build_dir, devices=3)
    done = subprocess.run(
        [sys.executable, "-c", VISIBLE, *seen], env=environment, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [str(numbers) for numbers in seen.values()], done.stderr
