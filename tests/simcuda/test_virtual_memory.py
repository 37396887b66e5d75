"""The driver's virtual memory, of which PyTorch makes expandable segments."""

from __future__ import annotations

import pytest

EXPANDABLE = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
MODES = {
    "inline": {"kernels": "inline"},
    "async": {"kernels": "async", "schedule": "late"},
    "timed": {"kernels": "timed", "card": "A100-SXM-40GB"},
}


@pytest.fixture(params=MODES)
def mode(request):
    return MODES[request.param]


def test_segments_grow_in_place(simulate, mode):
    simulate(
        """
        import torch, simcuda
        computes = "A100" not in torch.cuda.get_device_name()
        tensors = [torch.full((1 << 20,), float(i), device="cuda") for i in range(40)]
        assert len(torch.cuda.memory_snapshot()) == 1
        assert simcuda.stats().device_bytes == 160 << 20
        # Copies across the pieces that the segment is made of.
        page_locked = torch.zeros(40 << 20, pin_memory=True)
        page_locked.copy_(torch.cat(tensors), non_blocking=True)
        torch.cuda.synchronize()
        for i in range(40):
            assert page_locked[i << 20 : (i + 1) << 20].eq(i if computes else 0).all(), i
        del tensors
        torch.cuda.empty_cache()
        calls = simcuda.calls()
        assert simcuda.stats().device_bytes == 0
        assert calls["cudaMalloc"] == 0 and calls["cuMemMap"] >= 16
        assert calls["cuMemCreate"] == calls["cuMemRelease"] == calls["cuMemMap"]
        """,
        capacity="1G",
        variables=EXPANDABLE,
        **mode,
    )


def test_a_hole_is_filled_where_one_block_would_not_fit(simulate, mode):
    program = """
        import torch
        def make(mib):
            return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")
        blocks = [make(40) for _ in range(6)]
        del blocks[::2]
        large = make(110)
        """
    simulate(program, capacity="256M", variables=EXPANDABLE, **mode)
    simulate(program.replace("110", "150"), capacity="256M", status=1, variables=EXPANDABLE, **mode)


def test_memory_that_cannot_be_made_is_out_of_memory(simulate, mode):
    simulate(
        """
        import torch, simcuda
        torch.cuda.init()
        try:
            torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError:
            pass
        else:
            raise AssertionError("the fault was not noticed")
        simcuda.set_faults("")
        torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
        """,
        faults="cuMemCreate:3-",
        variables=EXPANDABLE,
        **mode,
    )


def test_the_driver_refuses_what_a_card_refuses(simulate, mode):
    simulate(
        """
        import ctypes, torch, simcuda
        torch.cuda.init()
        driver = ctypes.CDLL("libcuda.so.1")
        size, MIB = ctypes.c_size_t, 1 << 20

        class Properties(ctypes.Structure):
            _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int),
                        ("place", ctypes.c_int), ("device", ctypes.c_int),
                        ("more", ctypes.c_byte * 32)]

        def reserve(bytes):
            address = ctypes.c_uint64()
            error = driver.cuMemAddressReserve(ctypes.byref(address), size(bytes), size(0),
                                               ctypes.c_uint64(0), ctypes.c_uint64(0))
            return error, address.value

        def create(bytes, device=0):
            handle = ctypes.c_uint64()
            properties = Properties(type=1, place=1, device=device)
            error = driver.cuMemCreate(ctypes.byref(handle), size(bytes), ctypes.byref(properties),
                                       ctypes.c_uint64(0))
            return error, handle.value

        def map(address, bytes, handle):
            return driver.cuMemMap(ctypes.c_uint64(address), size(bytes), size(0),
                                   ctypes.c_uint64(handle), ctypes.c_uint64(0))

        def unmap(address, bytes):
            return driver.cuMemUnmap(ctypes.c_uint64(address), size(bytes))

        def release(handle):
            return driver.cuMemRelease(ctypes.c_uint64(handle))

        def free(address, bytes):
            return driver.cuMemAddressFree(ctypes.c_uint64(address), size(bytes))

        invalid, out_of_memory = 1, 2
        assert reserve(MIB)[0] == create(MIB)[0] == invalid      # not whole pages
        assert create(2 * MIB, device=1)[0] == invalid
        assert create(100 * MIB)[0] == out_of_memory
        error, address = reserve(64 * MIB)
        assert error == 0
        error, handle = create(4 * MIB)
        assert error == 0 and simcuda.stats().device_bytes == 4 * MIB
        assert map(address + 62 * MIB, 4 * MIB, handle) == invalid  # beyond the end
        assert map(address, 4 * MIB, handle) == 0
        assert map(address + 8 * MIB, 4 * MIB, handle) == invalid  # a second time
        other = create(4 * MIB)[1]
        assert map(address + 2 * MIB, 4 * MIB, other) == invalid   # over another
        assert unmap(address, 2 * MIB) == invalid                  # half a piece
        assert free(address, 64 * MIB) == invalid                  # while mapped
        assert release(handle) == 0 and release(handle) == invalid
        assert simcuda.stats().device_bytes == 8 * MIB             # still mapped
        assert unmap(address, 4 * MIB) == 0 and release(other) == 0
        assert simcuda.stats().device_bytes == 0
        assert free(address, 64 * MIB) == 0 and free(address, 64 * MIB) == invalid
        """,
        capacity="64M",
        **mode,
    )
