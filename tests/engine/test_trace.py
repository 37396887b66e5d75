"""The trace that the engine records: a program's operators, storages and steps in the format."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from lms_cli.trace import reader
from support.child import Finished
from support.device import Device

STEPS = 5

TRAINING = f"""
import sys, torch
torch.cuda.set_limit_lms(int(sys.argv[1]))
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8))).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
x = torch.ones(1024, 512, device="cuda")
for step in range({STEPS}):
    torch.cuda.lms.step()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
print(torch.cuda.memory_stats()["reclaimed"])
"""

# Long operators, so that the device never waits for the host. Prints when the device is done with
# each step, in microseconds.
TIMED = """
import simcuda, torch
model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(4))).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
x = torch.ones(4096, 4096, device="cuda")
times = [simcuda.device_time(0) / 1e3]
for step in range(5):
    torch.cuda.lms.step()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    times.append(simcuda.device_time(0) / 1e3)
print(times)
"""


def record(device: Device, path: Path, code: str, *arguments: Any, **settings: Any) -> Finished:
    env = {"PYTORCH_LMS": "1", "PYTORCH_LMS_TRACE": str(path), **settings.pop("env", {})}
    return device.run("-c", code, *arguments, env=env, **settings)


def events(path: Path) -> list[dict[str, Any]]:
    """Those of a trace that keeps to the format: read() raises where it does not."""
    reader.read(path)
    return [json.loads(line) for line in path.read_text().splitlines()][1:]


def compute_of_steps(path: Path) -> list[float]:
    """Microseconds of the operators of each step."""
    sums: list[float] = []
    for event in events(path):
        if "step" in event:
            sums.append(0.0)
        elif "op" in event and sums:
            sums[-1] += event["us"]
    return sums


@pytest.mark.parametrize("limit", [0, 24 << 20], ids=["fits", "pages"])
def test_training_is_recorded(device: Device, tmp_path: Path, limit: int) -> None:
    path = tmp_path / "training.jsonl"
    done = record(device, path, TRAINING, limit, capacity="256M")
    assert (done.json() > 0) == (limit > 0)
    assert [event["step"] for event in events(path) if "step" in event] == list(range(STEPS))
    # Whole operators, with their overloads; the list operator may come in chunks.
    names = [event["op"] for event in events(path) if "op" in event]
    assert names.count("aten::addmm") == 8 * STEPS
    assert names.count("aten::_fused_adamw_") >= STEPS
    allocated = [event["alloc"] for event in events(path) if "alloc" in event]
    freed = [event["free"] for event in events(path) if "free" in event]
    assert len(allocated) == len(set(allocated)) > len(freed) > 8 * STEPS
    header = json.loads(path.read_text().splitlines()[0])
    assert header["lms_trace"] == 2 and header["name"] == "-c" and header["card"]


def test_what_an_operator_reads_and_writes(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "add.jsonl"
    code = """
import torch
a = torch.zeros(1000, device="cuda")
b = torch.zeros(2000, device="cuda")[:1000]
torch.cuda.lms.step()
c = torch.add(a, b)
a.mul_(c)
del c
"""
    assert record(device, path, code, capacity="64M").status == 0
    seen = events(path)
    start = seen.index({"step": 0})
    sizes = {event["bytes"]: event["alloc"] for event in seen[:start] if "alloc" in event}
    a, b = sizes[4000], sizes[8000]
    made, add, mul, freed = seen[start + 1 : start + 5]
    c = made["alloc"]
    assert made == {"alloc": c, "bytes": 4000, "kind": "other"}
    assert add["op"] == "aten::add.Tensor" and sorted(add["reads"]) == sorted([a, b])
    assert add["writes"] == add["again"] == [c]
    assert mul["op"] == "aten::mul_.Tensor" and mul["reads"] == [c] and mul["writes"] == [a]
    assert freed == {"free": c}


def test_what_is_loaded(device: Device, tmp_path: Path) -> None:
    """A storage that begins on the host is one like others, before the operators that use it."""
    path = tmp_path / "load.jsonl"
    code = """
import sys, torch
from torch import nn
torch.cuda.set_limit_lms(24 << 20)
with torch.device("meta"):
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(10)))
weights = {f"{i}.weight": torch.full((1024, 1024), float(i)) for i in range(10)}
torch.cuda.lms.save(weights, sys.argv[1])
torch.cuda.lms.load(model, sys.argv[1])
assert torch.cuda.lms.stats()["lms.paged_out_bytes.current"] >= 16 << 20
for _ in range(3):
    torch.cuda.lms.step()
    model(torch.ones(8, 1024, device="cuda")).sum().backward()
    del model[0].weight.grad
"""
    done = record(device, path, code, tmp_path / "x.safetensors", capacity="64M")
    assert done.status == 0, done.stderr
    seen = events(path)
    start = seen.index({"step": 0})
    loaded = [event["alloc"] for event in seen[:start] if event.get("bytes") == 4 << 20]
    assert len(loaded) == 10
    first, *rest = (event for event in seen if "op" in event and loaded[0] in event["reads"])
    assert seen.index(first) > start and len(rest) >= 2


# What can be made again: a result, what was changed in place if it could be before, a result with
# others, one with random numbers. And what cannot: of an operator that gives other bits each time,
# and what was changed in place and could not be made before.
MADE_AGAIN = """
import torch
x = torch.ones(8, 100, device="cuda")
torch.cuda.lms.step()
y = x.exp()
y.add_(1)
values, places = torch.nn.functional.max_pool2d(x[None], 2, return_indices=True)
z = torch.nn.functional.dropout(y)
torch.zeros(100, device="cuda").index_add_(0, torch.zeros(8, dtype=int, device="cuda"), z[:, 0])
x.add_(1)
"""


@pytest.mark.parametrize("recompute", ["on", "off"])
def test_what_can_be_made_again(device: Device, tmp_path: Path, recompute: str) -> None:
    path = tmp_path / "again.jsonl"
    conf = {"PYTORCH_LMS_CONF": f"recompute:{recompute}"}
    done = record(device, path, MADE_AGAIN, capacity="64M", env=conf)
    assert done.status == 0, done.stderr
    seen = events(path)
    seen = [event for event in seen[seen.index({"step": 0}) :] if "op" in event]
    made = {event["op"] for event in seen if event["again"]}
    assert all(event["again"] in ([], event["writes"]) for event in seen)
    expected = {
        "aten::exp",
        "aten::add_.Tensor",
        "aten::max_pool2d_with_indices",
        "aten::native_dropout",
    }
    assert made == (expected if recompute == "on" else set())
    changed = [bool(event["again"]) for event in seen if event["op"] == "aten::add_.Tensor"]
    assert changed == [recompute == "on", False]


def test_times_of_operators_are_those_of_the_step(device: Device, tmp_path: Path) -> None:
    if not device.simulated:
        pytest.skip("needs the timed mode of the simulated device")
    path = tmp_path / "timed.jsonl"
    done = record(device, path, TIMED, kernels="timed", card="A100-PCIe-40GB", capacity="8G")
    starts = done.json()
    expected = [end - start for start, end in itertools.pairwise(starts)]
    assert all(event["us"] > 0 for event in events(path) if "op" in event)
    # The first steps allocate memory, for which the device waits.
    assert compute_of_steps(path)[2:] == pytest.approx(expected[2:], rel=0.02)


def test_only_the_first_device_is_recorded(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "two.jsonl"
    code = """
import torch
for name in ("cuda:1", "cuda:0", "cuda:1"):
    torch.ones(1000, device=name).add_(1)
"""
    assert record(device, path, code, capacity="64M", devices=2).status == 0
    names = [event["op"] for event in events(path) if "op" in event]
    assert names.count("aten::add_.Tensor") == 1


def test_operators_of_the_host_cost_nothing(device: Device, tmp_path: Path) -> None:
    if not device.simulated:
        pytest.skip("needs the simulated device, which counts calls")
    code = """
import simcuda, torch
torch.ones(1000, device="cuda").add_(1)
before = simcuda.calls()
torch.ones(1000).add_(1)
assert simcuda.calls() == before
torch.ones(1000, device="cuda")
assert simcuda.calls()["cudaEventRecord"] > before["cudaEventRecord"]
"""
    done = record(device, tmp_path / "host.jsonl", code, capacity="64M")
    assert done.status == 0, done.stderr


def test_a_program_that_forks(device: Device, tmp_path: Path) -> None:
    """Children inherit the trace and must not write to it, nor ask CUDA for times."""
    path = tmp_path / "fork.jsonl"
    code = """
import os, sys, torch
x = torch.ones(1000, device="cuda")
child = os.fork()
if child == 0:
    torch.ones(3).add_(1)
    torch.cuda.lms.step()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
torch.cuda.lms.step()
x.add_(1)
"""
    done = record(device, path, code, capacity="64M")
    assert done.status == 0, done.stderr
    assert [event["step"] for event in events(path) if "step" in event] == [0]


def test_a_file_that_cannot_be_created(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "absent" / "trace.jsonl"
    done = record(device, path, "import torch; torch.cuda.init()", capacity="64M")
    assert done.status == 1
    for words in (str(path), "No such file or directory", "PYTORCH_LMS_TRACE"):
        assert words in done.stderr
    assert "INTERNAL ASSERT" not in done.stderr


def test_a_disk_that_becomes_full(device: Device, tmp_path: Path) -> None:
    """The program learns it once, and can go on."""
    path = tmp_path / "large.jsonl"
    code = """
import resource, signal, torch
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
x = torch.zeros(1000, device="cuda")
try:
    for _ in range(10_000):
        x.add_(1)
except RuntimeError as error:
    print(str(error).splitlines()[0])
torch.cuda.lms.step()
x.zero_()
print(x.add_(1)[0].item())
"""
    done = record(device, path, code, capacity="64M")
    assert done.status == 0, done.stderr
    message, value = done.stdout.splitlines()
    assert str(path) in message and "File too large" in message
    assert value == "1.0"


def test_steps_need_no_trace(device: Device) -> None:
    code = """
import torch
torch.cuda.lms.step()
torch.cuda.set_enabled_lms(True)
torch.cuda.lms.step()
torch.ones(3, device="cuda")
torch.cuda.lms.step()
"""
    done = device.run("-c", code, capacity="64M")
    assert done.status == 0, done.stderr
