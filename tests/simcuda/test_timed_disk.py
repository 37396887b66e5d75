"""The timing mode: what is read from disks and written to them, past the page cache."""

from __future__ import annotations

import pytest

# Host functions in streams that read and write a file with O_DIRECT, whose path is an argument.
DISK = """
import ctypes, os
runtime = ctypes.CDLL(None, use_errno=True)
runtime.pread.restype = runtime.pwrite.restype = ctypes.c_ssize_t
HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
MIB = 1 << 20
file = os.open(sys.argv[1] + "/file", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
memory = locked(256)

def call(name, file, at, size):
    "What pread or pwrite returns."
    place = ctypes.c_void_p(memory.data_ptr() + at)
    return getattr(runtime, name)(file, place, ctypes.c_size_t(size), ctypes.c_long(at))

def launch(stream, work):
    "Has the stream run the function."
    function = HostFunction(lambda _: work())
    assert runtime.cudaLaunchHostFunc(ctypes.c_void_p(stream.cuda_stream), function, None) == 0

def transfer(name, mib, stream):
    "Reads or writes in calls of 4 MiB."
    done = []
    def work():
        done.extend(call(name, file, at, 4 * MIB) for at in range(0, mib * MIB, 4 * MIB))
    launch(stream, work)
    assert done == [4 * MIB] * (mib // 4), done

def disk_ns(name, mib):
    return round(1e9 * mib * MIB / card["disk"]["read" if name == "pread" else "write"])
"""


@pytest.fixture
def on_disk(timed, disk_folder):
    """Runs a program with the tools above."""
    return lambda program, **settings: timed(
        DISK + program, arguments=(str(disk_folder),), **settings
    )


def test_bytes_over_the_cards_figure(on_disk):
    on_disk("""
assert card["disk"]["read"] != card["disk"]["write"]
for name, mib in ("pread", 256), ("pwrite", 256), ("pread", 4):
    before = simcuda.busy()
    total, host = device_takes(lambda: transfer(name, mib, one))
    assert disk_ns(name, mib) <= total <= disk_ns(name, mib) + host, (name, total, host)
    assert host < 0.1 * MS, host  # it did not wait
    torch.cuda.synchronize()
    after = simcuda.busy()
    assert after.disk - before.disk == disk_ns(name, mib)
    assert (after.compute, after.host_to_device) == (before.compute, before.host_to_device)
assert os.fstat(file).st_size == 0  # no bytes were moved
""")


def test_one_thing_at_a_time_beside_all_else(on_disk):
    on_disk("""
source, target = locked(64), on_device(64)
read, written = disk_ns("pread", 64), disk_ns("pwrite", 128)
def work(copies):
    transfer("pread", 64, one)
    transfer("pwrite", 128, two)
    if copies:
        torch.cuda._sleep(15 * MS)
        with torch.cuda.stream(three):
            target.copy_(source, non_blocking=True)
three = torch.cuda.Stream()
for copies in False, True:
    total, host = device_takes(lambda: work(copies))
    assert read + written <= total <= read + written + host, (total, read, written, host)
assert 15 * MS < read + written
""")


def test_streams_order_it(on_disk):
    on_disk("""
source, target = locked(64), on_device(64)
copy = copy_ns(64 << 20, "page_locked", "h2d")
def work():
    with torch.cuda.stream(one):
        torch.cuda._sleep(5 * MS)
    two.wait_stream(one)
    transfer("pread", 64, two)
    with torch.cuda.stream(two):
        target.copy_(source, non_blocking=True)
total, host = device_takes(work)
expected = 5 * MS + disk_ns("pread", 64) + copy
assert expected <= total <= expected + host, (total, expected, host)
""")


def test_what_counts(on_disk):
    on_disk("""
import threading

def takes(work):
    "Nanoseconds of the disk."
    torch.cuda.synchronize()
    before = simcuda.busy().disk
    launch(one, work)
    torch.cuda.synchronize()
    return simcuda.busy().disk - before

# What threads do for the function.
def by_threads():
    parts = [threading.Thread(target=call, args=("pread", file, at * MIB, MIB)) for at in range(8)]
    for part in parts:
        part.start()
    for part in parts:
        part.join()
assert takes(by_threads) == disk_ns("pread", 8)

# Not a call that fails.
simcuda.set_faults("pread:2")
done = []
def thrice():
    done.extend(call("pread", file, 0, MIB) for _ in range(3))
assert takes(thrice) == disk_ns("pread", 2)
assert done == [MIB, -1, MIB], done

# Not what goes through the page cache: that is real.
memory[:3] = torch.tensor(list(b"abc"), dtype=torch.uint8)
plain = os.open(sys.argv[1] + "/plain", os.O_RDWR | os.O_CREAT)
assert takes(lambda: call("pwrite", plain, 0, 3)) == 0
assert os.read(plain, 9) == b"abc"
""")
