"""The timing mode: virtual time is arithmetic."""

from __future__ import annotations

import json

import pytest
from simcuda import cards

CARD = "A100-SXM-40GB"


def test_kernels_and_copies_of_two_streams_overlap(timed):
    timed("""
source, target = locked(256), on_device(256)
copy = copy_ns(256 << 20, "page_locked", "h2d")
def work():
    with torch.cuda.stream(one):
        torch.cuda._sleep(50 * MS)
    with torch.cuda.stream(two):
        target.copy_(source, non_blocking=True)
total, host = device_takes(work)
assert copy < 50 * MS
assert 50 * MS < total < 50 * MS + host, (total, host)  # the copy is hidden
assert host < 0.1 * MS, host                            # and the host did not wait
before = simcuda.busy()
torch.cuda.synchronize()
after = simcuda.busy()
assert after.compute - before.compute == 50 * MS
assert after.host_to_device - before.host_to_device == copy
""")


def test_kernels_of_two_streams_share_the_device(timed):
    timed("""
def work():
    for stream in one, two:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(5 * MS)
total, host = device_takes(work)
assert 10 * MS < total < 10 * MS + host
""")


def test_a_wait_for_an_event_puts_work_one_after_the_other(timed):
    timed("""
source, target = locked(64), on_device(64)
copy = copy_ns(64 << 20, "page_locked", "h2d")
def work(waits):
    with torch.cuda.stream(one):
        torch.cuda._sleep(5 * MS)
    if waits:
        two.wait_stream(one)
    with torch.cuda.stream(two):
        target.copy_(source, non_blocking=True)
free, _ = device_takes(lambda: work(False))
ordered, host = device_takes(lambda: work(True))
assert free < 5 * MS + host
assert 5 * MS + copy < ordered < 5 * MS + copy + host
""")


def test_an_event_after_a_wait_alone_is_as_late_as_what_was_waited_for(timed):
    timed("""
with torch.cuda.stream(one):
    torch.cuda._sleep(7 * MS)
two.wait_stream(one)
event = two.record_event()
assert not event.query()
begin = simcuda.virtual_time()
event.synchronize()
assert 6.9 * MS < simcuda.virtual_time() - begin < 7 * MS
assert event.query() and one.query()
""")


def test_both_directions_at_once_slow_each_other_down(timed):
    timed("""
here, there = [locked(512) for _ in range(2)], [on_device(512) for _ in range(2)]
def work(streams):
    with torch.cuda.stream(streams[0]):
        there[0].copy_(here[0], non_blocking=True)
    with torch.cuda.stream(streams[1]):
        here[1].copy_(there[1], non_blocking=True)
up, down = (copy_ns(512 << 20, "page_locked", way) for way in ("h2d", "d2h"))
in_turn, host = device_takes(lambda: work([one, one]))
assert up + down <= in_turn <= up + down + host
together, host = device_takes(lambda: work([one, two]))
link = card["page_locked"]
speed = link["both"] / (link["h2d"] + link["d2h"])
# Both slowed down until the shorter one is done, then the rest at full speed.
expected = down / speed + (up - down)
assert down < up and speed < 1
assert expected <= together <= expected + host, (together, expected, host)
stats = simcuda.stats()
assert stats.host_to_device_bytes == stats.device_to_host_bytes == 2 * (512 << 20)
""")


def test_a_copy_that_is_ready_does_not_queue_behind_one_that_is_not(timed):
    timed("""
late, soon = on_device(64), on_device(64)
sources = locked(64), locked(64)
def work():
    with torch.cuda.stream(one):
        torch.cuda._sleep(20 * MS)
        late.copy_(sources[0], non_blocking=True)
    with torch.cuda.stream(two):
        soon.copy_(sources[1], non_blocking=True)
        event.record()
event = torch.cuda.Event()
torch.cuda.synchronize()
work()
begin = simcuda.virtual_time()
event.synchronize()
assert simcuda.virtual_time() - begin <= copy_ns(64 << 20, "page_locked", "h2d")
assert simcuda.device_time() > begin + 19 * MS
""")


def test_elapsed_time_is_virtual(timed):
    timed("""
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
torch.cuda._sleep(1 * MS)
start.record()
torch.cuda._sleep(5 * MS)
end.record()
end.synchronize()
assert start.elapsed_time(end) == 5.0
""")


def test_memory_page_locked_in_the_background_is_waited_for_at_a_copy(timed):
    timed("""
import threading
register = torch.cuda.cudart().cudaHostRegister
unregister = torch.cuda.cudart().cudaHostUnregister
device = on_device(64)
def wait(meanwhile):
    torch.cuda.synchronize()
    memory = torch.empty(64 << 20, dtype=torch.uint8)
    thread = threading.Thread(target=register, args=(memory.data_ptr(), 64 << 20, 0))
    begin = simcuda.virtual_time()
    thread.start()
    thread.join()
    assert simcuda.virtual_time() == begin
    if meanwhile:
        torch.cuda._sleep(meanwhile)
        torch.cuda.synchronize()
    begin = simcuda.virtual_time()
    device.copy_(memory, non_blocking=True)
    takes = simcuda.virtual_time() - begin
    assert unregister(memory.data_ptr()) == 0
    return takes
locking = wait(0)
assert 0.15 * (64 << 20) < locking < 0.15 * (64 << 20) + 5 * MS
assert abs(wait(4 * MS) - (locking - 4 * MS)) < 0.1 * MS
assert wait(20 * MS) < 0.05 * MS
# What a thread page-locks in pieces is ready with the last of them.
memory = torch.empty(64 << 20, dtype=torch.uint8)
def register_halves():
    for half in memory.chunk(2):
        assert register(half.data_ptr(), half.numel(), 0) == 0
thread = threading.Thread(target=register_halves)
thread.start()
thread.join()
begin = simcuda.virtual_time()
device[:1000].copy_(memory[:1000], non_blocking=True)
assert simcuda.virtual_time() - begin > 0.15 * (64 << 20)
""")


# Threads that page-lock memory, and what the program waits for meanwhile.
PAGE_LOCKING = """
import ctypes, mmap, threading
runtime = ctypes.CDLL(None)
MIB, POPULATE_WRITE, DONTFORK = 1 << 20, 23, 10
CLEAR, LOCK = card["page_clear_ns_per_byte"] * MIB, card["page_lock_ns_per_byte"] * MIB
CALLS = card["calls"]

def pages(mib):
    "The address of fresh memory."
    runtime.mmap.restype = ctypes.c_void_p
    size = ctypes.c_size_t(mib * MIB)
    access, private = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return runtime.mmap(None, size, access, private, -1, ctypes.c_size_t(0))

def advise(address, mib, advice):
    assert runtime.madvise(ctypes.c_void_p(address), ctypes.c_size_t(mib * MIB), advice) == 0

def register(address, mib):
    size = ctypes.c_size_t(mib * MIB)
    assert runtime.cudaHostRegister(ctypes.c_void_p(address), size, 1) == 0

def allocate(mib):
    address = ctypes.c_void_p()
    assert runtime.cudaHostAlloc(ctypes.byref(address), ctypes.c_size_t(mib * MIB), 1) == 0

def in_the_background(work, *arguments):
    thread = threading.Thread(target=work, args=arguments)
    thread.start()
    return thread

def waits():
    "Nanoseconds that short calls take, until all threads are done; the times of those over 0.1 ms."
    found = []
    begin = simcuda.virtual_time()
    while simcuda.virtual_time() < begin + 500 * MS:
        before = simcuda.virtual_time()
        torch.cuda.mem_get_info()
        if simcuda.virtual_time() - before > MS // 10:
            found.append((before - begin, simcuda.virtual_time() - begin))
    return found

def near(found, expected):
    assert len(found) == len(expected), (found, expected)
    for pair, other in zip(found, expected):
        for time, wanted in zip(pair, other):
            assert abs(time - wanted) < MS / 4, (found, expected)

torch.cuda.mem_get_info()
"""


def test_calls_wait_while_a_thread_page_locks(timed):
    program = (
        PAGE_LOCKING
        + """
in_the_background(allocate, 64).join()
takes = CALLS["cudaHostAlloc"] + 64 * (CLEAR + LOCK)
near(waits(), [(0, takes)] if LOCKS else [])
# Operators' kernels too, and not what only reads the thread's state.
in_the_background(allocate, 64).join()
begin = simcuda.virtual_time()
torch.cuda.current_device()
assert simcuda.virtual_time() - begin < MS
x = torch.zeros(4, device="cuda")
assert (simcuda.virtual_time() - begin > takes - MS) == LOCKS
"""
    )
    timed("LOCKS = True" + program, driver_lock=True)
    timed("LOCKS = False" + program)


def test_memory_that_is_there_is_page_locked_sooner(timed):
    timed(
        PAGE_LOCKING
        + """
def work(address):
    advise(address, 64, POPULATE_WRITE)
    register(address, 64)
in_the_background(work, pages(64)).join()
takes = CALLS["cudaHostRegister"] + 64 * LOCK
near(waits(), [(64 * CLEAR, 64 * CLEAR + takes)])
in_the_background(register, pages(64), 64).join()  # the driver has the pages cleared
near(waits(), [(0, takes + 64 * CLEAR)])
half = pages(64)
advise(half, 32, POPULATE_WRITE)
in_the_background(register, half, 64).join()
near(waits(), [(0, takes + 32 * CLEAR)])
""",
        driver_lock=True,
    )


def test_what_is_announced_is_waited_for_however_late_its_thread_runs(timed):
    timed(
        PAGE_LOCKING
        + """
import time
def work(address):
    for at in range(address, address + 96 * MIB, 32 * MIB):
        time.sleep(0.05)  # in real time, while the program would go on
        advise(at, 32, POPULATE_WRITE)
        time.sleep(0.05)
        register(at, 32)
address = pages(96)
advise(address, 96, DONTFORK)
thread = in_the_background(work, address)
clear, lock = 32 * CLEAR, CALLS["cudaHostRegister"] + 32 * LOCK
near(waits(), [(clear + i * (clear + lock), (i + 1) * (clear + lock)) for i in range(3)])
thread.join()
# A thread that ends without having done it, and the program itself, hold nobody up.
address = pages(8)
advise(address, 8, DONTFORK)
in_the_background(advise, address, 8, POPULATE_WRITE)
torch.cuda.synchronize()
address = pages(8)
advise(address, 8, DONTFORK)
advise(address, 8, POPULATE_WRITE)
torch.cuda.synchronize()
""",
        driver_lock=True,
    )


def test_pageable_copies_hold_the_host_up(timed):
    timed("""
device, pageable, page_locked = on_device(64), torch.empty(64 << 20, dtype=torch.uint8), locked(64)
def host_time(to, source):
    torch.cuda.synchronize()
    begin = simcuda.virtual_time()
    to.copy_(source, non_blocking=True)
    return simcuda.virtual_time() - begin
assert host_time(device, page_locked) < 0.05 * MS
assert host_time(page_locked, device) < 0.05 * MS
for to, source, way in (device, pageable, "h2d"), (pageable, device, "d2h"):
    copy = copy_ns(64 << 20, "pageable", way)
    assert copy < host_time(to, source) < copy + 0.05 * MS
# The driver stages what is small, and the host goes on; not when it wants the answer.
torch.cuda._sleep(9 * MS)
begin = simcuda.virtual_time()
device[:1000].copy_(pageable[:1000], non_blocking=True)
assert simcuda.virtual_time() - begin < 0.05 * MS
device[0].item()
assert simcuda.virtual_time() - begin > 8.9 * MS
""")


def test_freeing_memory_waits_for_the_device(timed):
    timed("""
block = on_device(64)
torch.cuda._sleep(9 * MS)
begin = simcuda.virtual_time()
del block
torch.cuda.empty_cache()
assert simcuda.virtual_time() - begin > 8.9 * MS
assert simcuda.stats().device_bytes == 0
""")


def test_a_launch_blocks_when_the_stream_is_full(timed):
    timed("""
torch.cuda.synchronize()
begin = simcuda.virtual_time()
for _ in range(1500):
    torch.cuda._sleep(MS)
host = simcuda.virtual_time() - begin
assert (1500 - 1025) * MS < host < (1500 - 1023) * MS, host
""")


def test_looking_ahead_changes_nothing(timed):
    timed("""
device, source = on_device(64), locked(64)
torch.cuda._sleep(9 * MS)
begin = simcuda.virtual_time()
end = simcuda.device_time()
assert end > begin + 8 * MS and simcuda.virtual_time() == begin
with torch.cuda.stream(one):
    device.copy_(source, non_blocking=True)  # still now, not after what was looked at
assert simcuda.device_time() == end
""")


def test_a_thread_in_the_background_does_not_hold_the_program_up(timed):
    timed("""
import threading
source, target = locked(64), on_device(64)
torch.cuda._sleep(50 * MS)
event = torch.cuda.current_stream().record_event()
begin = simcuda.virtual_time()
thread = threading.Thread(target=event.synchronize)
thread.start()
thread.join()
assert simcuda.virtual_time() == begin and not event.query()
""")


def test_a_thread_of_the_host_works_while_the_program_goes_on(timed):
    timed("""
count = 1 << 26
parameter = torch.empty(count, pin_memory=True)
gradient = torch.empty(count, pin_memory=True)
optimizer = torch.optim.AdamW([parameter], fused=True)
parameter.grad = gradient
# Parameters and two of state are read and written, gradients read.
step = 7 * 4 * count / card["host_bandwidth"] * 1e9
copy = copy_ns(4 * count, "page_locked", "d2h")
thread = simcuda.HostThread(1)

def job(is_ready):
    is_ready.synchronize()
    optimizer.step()

def work(jobs):
    results = []
    for _ in range(jobs):
        with torch.cuda.stream(one):
            gradient.copy_(on_device_gradient, non_blocking=True)
            is_ready = torch.cuda.Event()
            is_ready.record()
        results.append(thread.submit(job, is_ready))
    asked = simcuda.virtual_time()
    for result in results:
        result.result()
    return asked

on_device_gradient = torch.empty(count, device="cuda")
torch.cuda.synchronize()
for jobs in 1, 3:
    begin = simcuda.virtual_time()
    asked = work(jobs)
    assert asked - begin < 0.2 * MS                     # the program went on
    taken = simcuda.virtual_time() - begin
    assert 0 < taken - (copy + jobs * step) < 0.2 * MS  # copies run under steps
assert optimizer.state[parameter]["step"].item() == 4
begin = simcuda.virtual_time()
optimizer.step()                                        # by the program itself
assert 0 <= simcuda.virtual_time() - begin - step < 0.2 * MS
""")


def test_a_page_locked_copy_is_as_large_as_what_was_written(timed):
    timed("""
import resource
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
used = torch.full((1 << 20,), 5, dtype=torch.uint8).pin_memory()
assert used.eq(5).all()
del used
source = torch.empty(1 << 30, dtype=torch.uint8)
source[123456], source[-1] = 7, 9
before, begin = peak(), simcuda.virtual_time()
copy = source.pin_memory()
assert copy.is_pinned() and copy[123456] == 7 and copy[-1] == 9
assert peak() - before < 64 << 20
assert simcuda.virtual_time() - begin > 2e9 * source.nbytes / card["host_bandwidth"]
again = torch.zeros(1 << 20, dtype=torch.uint8).pin_memory()  # where `used` was
assert again.eq(0).all()
""")


def test_operators_cost_what_the_roofline_says(timed, tmp_path):
    path = tmp_path / "timeline.jsonl"
    timed(
        f"""
def make(*sizes, dtype=torch.float32):
    return torch.empty(*sizes, dtype=dtype, device="cuda")
a, b = make(4096, 4096), make(4096, 4096)
half, brain = a.half(), a.bfloat16()
images, filters = make(8, 64, 56, 56), make(128, 64, 3, 3)
table, rows = make(1_000_000, 64), torch.zeros(512, dtype=torch.long, device="cuda")
lists = [make(1000, 1000) for _ in range(100)]
steps = [make(1).sum() for _ in range(100)]
torch.cuda.synchronize()
simcuda.timeline({str(path)!r})
torch.mm(half, half)
torch.mm(brain, brain)
torch.mm(a, b)
torch.backends.cuda.matmul.allow_tf32 = True
torch.mm(a, b)
torch.mm(a.double(), b.double())
torch.conv2d(images, filters)
torch.add(a, b)
a.add_(1)
a.add_(make(1, 4096))
a.zero_()
a.copy_(half)
torch.nn.functional.embedding(rows, table)
torch._fused_adamw_(lists, lists, lists, lists, [], steps, lr=0.1, beta1=0.9, beta2=0.9,
                    weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False)
make(0).add_(1)
torch.cuda.synchronize()
simcuda.timeline(None)
"""
    )
    card = cards.card(CARD)
    bandwidth = card["bandwidth"] * card["bandwidth_efficiency"]
    launch = card["launch_ns"]

    def arithmetic(flops, kind):
        return launch + 1e9 * flops / (card["rates"][kind] * card["compute_efficiency"])

    def traffic(bytes_, launches=1):
        return launches * launch + 1e9 * bytes_ / bandwidth

    matrix, product = 4 * 4096**2, 2 * 4096**3
    expected = [
        ("aten::mm", arithmetic(product, "fp16")),
        ("aten::mm", arithmetic(product, "bf16")),
        ("aten::mm", arithmetic(product, "fp32")),
        ("aten::mm", arithmetic(product, "tf32")),
        ("aten::copy_", traffic(3 * matrix)),
        ("aten::copy_", traffic(3 * matrix)),
        ("aten::mm", arithmetic(product, "fp64")),
        ("aten::convolution", arithmetic(2 * 8 * 54 * 54 * 128 * 64 * 9, "tf32")),
        ("aten::add", traffic(3 * matrix)),
        ("aten::add_", traffic(2 * matrix)),
        ("aten::add_", traffic(2 * matrix + 4 * 4096)),
        ("aten::zero_", traffic(matrix)),
        ("aten::copy_", traffic(1.5 * matrix)),
        ("aten::index_select", traffic(2 * 512 * 64 * 4 + 512 * 8)),  # not the whole table
        ("aten::_fused_adamw_", traffic(7 * 100 * 4_000_000 + 100 * 4, launches=3)),
    ]
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["name"] for line in found] == [name for name, _ in expected]
    for line, (name, takes) in zip(found, expected):
        assert line["end"] - line["start"] == pytest.approx(takes, abs=1), name
        assert line["engine"] == "compute" and line["device"] == 0
