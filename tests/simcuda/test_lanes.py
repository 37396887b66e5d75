"""The timing mode: devices with a clock of the host each, and threads that run by them."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Threads in lanes. What is printed in the end is compared.
LANES = """
import json, threading, time
lanes = simcuda.Lanes()
names = [f"cuda:{device}" for device in range(torch.cuda.device_count())]
for name in names:
    torch.zeros(4, device=name)  # whatever CUDA makes once
    torch.cuda.synchronize(name)

def in_lanes(*works):
    "Runs work(device) for each device, in a thread and a lane; nanoseconds from here to each end."
    begin, ends, errors = simcuda.virtual_time(), {}, []
    def job(work, device):
        try:
            lanes.enter(device)
            torch.cuda.set_device(device)
            work(device)
            ends[device] = simcuda.virtual_time() - begin
        except BaseException as error:
            errors.append(error)
            raise
        finally:
            lanes.stop(device)
    threads = [threading.Thread(target=job, args=(work, i)) for i, work in enumerate(works)]
    with lanes.paused():
        for device, thread in enumerate(threads):
            lanes.start(device)
            thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert simcuda.virtual_time() - begin == max(ends.values())
    return [ends[device] for device in range(len(works))]

def sleeps(*milliseconds):
    "Work that has the device busy so long and waits for it, again and again."
    def work(device):
        for each in milliseconds:
            torch.cuda._sleep(each * MS)
            torch.cuda.synchronize()
    return work

def nothing(device):
    pass
"""


@pytest.fixture
def in_lanes(timed: Callable[..., Any]) -> Callable[..., Any]:
    """Runs a program with the tools above and three devices."""

    def run(program: str, **settings: Any) -> Any:
        return timed(LANES + program, **{"devices": 3, **settings})

    return run


def test_lanes_take_the_time_of_one(in_lanes: Callable[..., Any]) -> None:
    in_lanes("""
alone, = in_lanes(sleeps(*[10] * 10))
both = in_lanes(sleeps(*[10] * 10), sleeps(*[10] * 10))
assert 100 * MS < alone < 101 * MS
assert both == [alone, alone]
assert [simcuda.busy(device).compute // MS for device in (0, 1)] == [200, 100]
# Without lanes one host waits for one device after the other.
begin = simcuda.virtual_time()
for device in 0, 1:
    with torch.cuda.device(device):
        sleeps(10)(device)
assert simcuda.virtual_time() - begin > 20 * MS
""")


def test_who_waits_holds_nobody_up(in_lanes: Callable[..., Any]) -> None:
    in_lanes("""
def reads(device):
    torch.cuda._sleep(50 * MS)
    torch.zeros(4, device="cuda").sum().item()
    event = torch.cuda.Event()
    torch.cuda._sleep(30 * MS)
    event.record()
    while not event.query():
        pass
def fills(device):
    for _ in range(1400):
        torch.cuda._sleep(MS // 10)
    torch.cuda.current_stream().synchronize()
short, long, full = in_lanes(sleeps(1), reads, fills)
assert MS < short < 2 * MS and 80 * MS < long < 81 * MS and 140 * MS < full < 141 * MS
# Nor is a thread in another lane because it turns to another device for a while.
def visits(device):
    with torch.cuda.device(1 - device):
        torch.zeros(4, device="cuda")
        sleeps(5)(device)
        assert 5 * MS <= simcuda.device_time(1 - device) - begin < 6 * MS
begin = simcuda.virtual_time()
assert max(in_lanes(visits, visits)) < 6 * MS
""")


RACE = """
import random
from torch import nn
def train(seed):
    def work(device):
        model = nn.Sequential(*[nn.Linear(512 + 64 * device, 512 + 64 * device) for _ in range(6)])
        model.cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(6):
            if seed:  # threads are late in real time
                time.sleep(random.Random(seed + step + 10 * device).random() / 100)
            model(torch.randn(64 * (device + 1), 512 + 64 * device, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            now = simcuda.virtual_time() - begin
            steps.append((step, device, now, simcuda.busy(device).compute))
            if step % 2:
                torch.cuda.synchronize()
    return work
begin, steps = simcuda.virtual_time(), []
in_lanes(*[train(SEED)] * 2)
print(json.dumps([simcuda.virtual_time(), sorted(steps)]))
"""


def test_the_same_program_takes_the_same_time(in_lanes: Callable[..., Any], tmp_path: Path) -> None:
    paths = [tmp_path / f"{seed}.jsonl" for seed in range(2)]
    found = [
        in_lanes(RACE.replace("SEED", str(seed)), timeline=path) for seed, path in enumerate(paths)
    ]
    assert found[0] == found[1]
    lines = [path.read_text() for path in paths]
    assert lines[0] == lines[1]
    assert '"device": 0' in lines[0] and '"device": 1' in lines[0]


def test_a_lock_is_taken_in_virtual_time(in_lanes: Callable[..., Any]) -> None:
    in_lanes("""
lock, order = lanes.lock(), []
def locked_work(late):
    def work(device):
        time.sleep(0.05 * (2 - device))  # in real time the last one comes first
        sleeps(late)(device)
        for _ in range(3):
            with lock:
                order.append(device)
                sleeps(10)(device)
    return work
times = in_lanes(locked_work(2), locked_work(1), locked_work(3))
assert order == [1, 0, 2] * 3, order
assert 91 * MS < times[2] < 92 * MS and times[1] < times[0] < times[2]
# Another thread of the lane may give it back, and whoever comes next is of the same lane.
def hands_over(device):
    lock.acquire()
    def rest():
        lanes.enter(device)
        lock.acquire()
        order.append("rest")
        torch.cuda._sleep(5 * MS)
        torch.cuda.synchronize()
        lock.release()
    thread = threading.Thread(target=rest)
    thread.start()
    time.sleep(0.05)  # it waits by now
    sleeps(5)(device)
    order.append("first")
    release = threading.Thread(target=lambda: (lanes.enter(device), lock.release()))
    release.start()
    release.join()
    thread.join()
order.clear()
own, other = in_lanes(hands_over, locked_work(1))
assert order == ["first", 1, "rest", 1, 1] or order == ["first", "rest", 1, 1, 1], order
try:
    lock.release()
except RuntimeError as error:
    assert "nobody" in str(error)
else:
    raise AssertionError
""")


def test_threads_of_a_device_take_turns(in_lanes: Callable[..., Any]) -> None:
    """One lane after the other, started by whoever gives the device away."""
    in_lanes("""
log, gates = [], [threading.Semaphore(0) for _ in range(3)]
def turns(job, device, following):
    def run():
        gates[job].acquire()
        lanes.enter(device)
        torch.cuda.set_device(device)
        torch.zeros(4, device="cuda")
        begin = simcuda.virtual_time()
        torch.cuda._sleep(10 * MS)
        torch.cuda.synchronize()
        log.append((job, (begin - start) // MS, (simcuda.virtual_time() - start) // MS))
        following()
    return threading.Thread(target=run)
def first():
    lanes.start(1)      # another device begins when this one is here
    gates[2].release()
    gates[1].release()  # and the same one goes on
start = simcuda.virtual_time()
jobs = [turns(0, 0, first), turns(1, 0, lambda: lanes.stop(0)), turns(2, 1, lambda: lanes.stop(1))]
for job in jobs:
    job.start()
lanes.start(0)
gates[0].release()
for job in jobs:
    job.join()
assert sorted(log) == [(0, 0, 10), (1, 10, 20), (2, 10, 20)], log
# It is later on this device, and then no lane is there.
assert 20 <= (simcuda.virtual_time() - start) // MS < 21
try:
    lanes.enter(0)
except simcuda.SimulationError as error:
    assert "not started" in str(error)
else:
    raise AssertionError
""")


def test_other_threads_look_on(in_lanes: Callable[..., Any]) -> None:
    """They cost nobody time, nor do they wait for lanes."""
    in_lanes("""
usual = in_lanes(sleeps(*[5] * 20), sleeps(50))
asked = []
def asks(device):
    for _ in range(20):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        sleeps(5)(device)
def look():
    event = torch.cuda.Event()
    event.record()
    event.synchronize()
    asked.append(simcuda.virtual_time())
assert in_lanes(asks, sleeps(50)) == usual
assert asked == sorted(asked) and asked[-1] - asked[0] > 80 * MS
""")


def test_who_does_not_call_is_named(run_simulated: Callable[..., Any]) -> None:
    program = """
import threading, torch, simcuda
lanes = simcuda.Lanes(patience=0.2)
lock, done = lanes.lock(), threading.Event()
def first():
    lanes.enter(0)
    torch.zeros(4, device="cuda:0")
    done.wait()                              # where nobody sees it
    lanes.stop(0)
def second():
    lanes.enter(1)
    x = torch.zeros(4, device="cuda:1")
    for _ in range(100):
        x.add_(1)
    done.set()
with lanes.paused():
    lanes.start(0), lanes.start(1)
threads = [threading.Thread(target=work) for work in (first, second)]
for thread in threads:
    thread.start()
threading.Timer(1, done.set).start()
for thread in threads:
    thread.join()
lock.acquire()
threading.Timer(1, lock.release).start()
lanes.enter(1)
lock.acquire()
"""
    settings = {"kernels": "timed", "card": "A100-SXM-40GB", "capacity": None, "devices": 2}
    said = run_simulated(program, **settings).stderr.splitlines()
    assert [line for line in said if "virtual time" in line] == [
        "simcuda: lanes 1 wait in virtual time, and it is the turn of 0, whose threads do not call "
        "(they may wait for another lane where the simulation does not see it)",
        "simcuda: lanes 1 wait in virtual time, and none can go on",
    ], said


def test_lanes_go_on_side_by_side(in_lanes: Callable[..., Any]) -> None:
    """Nobody is ahead of others by more than a few operators where it could see them."""
    in_lanes("""
seen, lock = [], lanes.lock()
def works(device):
    x = torch.zeros(4, device="cuda")
    for _ in range(300 - 100 * device):
        x.add_(1)
        seen.append(simcuda.virtual_time() - begin)
    with lock:
        seen.append(device)
begin = simcuda.virtual_time()
in_lanes(*[works] * 3)
assert [at for at in seen if at < 3] == [2, 1, 0]
times = [at for at in seen if at > 3]
assert len(times) == 600 and times != sorted(times)
latest = 0
for at in times:
    assert at > latest - MS // 20
    latest = max(at, latest)
# Without operators, one may be, and sees its own device as it is then; a lock is not ahead of time.
def polls(device):
    torch.cuda._sleep(30 * MS)
    event = torch.cuda.current_stream().record_event()
    while not event.query():
        pass
    assert 30 * MS < simcuda.virtual_time() - begin < 31 * MS
    with lock:
        seen.append(device)
seen.clear()
begin = simcuda.virtual_time()
in_lanes(polls, works)
assert seen.index(1) < seen.index(0)
""")


def test_mutexes_of_the_process_do_not_stop_lanes(in_lanes: Callable[..., Any]) -> None:
    """PyTorch holds one while it casts parameters: a lane that gave way there would stop others."""
    in_lanes("""
def casts(device):
    layers = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(20)]).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        for _ in range(3):
            layers(torch.zeros(64, 256, device="cuda")).sum().backward()
one, other = in_lanes(casts, casts)
assert one == other
""")


# A stack of layers whose weights and activations are more than the device has.
PAGING = """
from lms_bench.workloads.transformer import Block
from torch import nn
if not hasattr(torch.cuda, "set_enabled_lms"):
    raise SystemExit(0)
torch.cuda.set_enabled_lms(True)
torch.cuda.lms.set_host_limit(64 << 30)
def train(device):
    blocks = nn.Sequential(*[Block(2048, 16, 0.0, causal=True, norm_first=True) for _ in range(6)])
    blocks.cuda()
    optimizer = torch.optim.SGD(blocks.parameters(), lr=1e-3)
    tokens = torch.randn(4, 512, 2048, device="cuda")
    times = []
    for step in range(10):
        begin = simcuda.virtual_time()
        loss = blocks(tokens).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        times.append(simcuda.virtual_time() - begin)
    steps[device] = times
    paged[device] = torch.cuda.memory_stats(device)["lms.page_out.bytes"]
steps, paged = {}, {}
in_lanes(*[train] * int(sys.argv[1]))
print(json.dumps([steps, paged]))
"""


def test_devices_that_page_do_not_slow_each_other_down(in_lanes: Callable[..., Any]) -> None:
    def run(devices: str) -> Any:
        ledger = {"PYTORCH_LMS_HOST_LEDGER": "none"}
        return in_lanes(PAGING, arguments=(devices,), capacity="2816M", variables=ledger)

    alone, both, again = run("1"), run("2"), run("2")
    if alone is None:
        pytest.skip("this torch has no Large Model Support")
    assert both == again
    assert min(both[1].values()) > 4 << 30
    # What memory is page-locked first, and so what plans there are, is not the same.
    usual, *others = (
        statistics.median(times[-4:]) for run in (alone, both) for times in run[0].values()
    )
    assert others == pytest.approx([usual] * 2, rel=0.01)
