"""What shows what LMS does: profilers, memory snapshots, loggers of experiments, the log."""

from __future__ import annotations

import logging
from pathlib import Path

import checked
import pytest
from support.device import Device


@pytest.mark.parametrize(
    ("program", "mode"), [("watching", "1"), ("watching", "chaos"), ("metrics", "chaos")]
)
def test_views(device: Device, subtests: pytest.Subtests, program: str, mode: str) -> None:
    env = {"PYTORCH_LMS": mode}
    results = checked.run(device, program, capacity="256M", devices=2, env=env)
    checked.expect_passed(results, subtests)


def test_metrics_before_cuda_is_used(device: Device) -> None:
    code = """
import torch
nothing = torch.cuda.lms.metrics()
assert nothing and not any(nothing.values()) and not torch.cuda.is_initialized()
torch.ones(1 << 20, device="cuda")
assert torch.cuda.lms.metrics().keys() == nothing.keys()
"""
    done = device.run("-c", code)
    assert done.status == 0, done.stderr


# A loop that needs some 250 MiB on the device. A forked process ends as Python programs end.
LOOP = """
import logging, os, sys, warnings
sys.stderr = sys.stdout
warnings.simplefilter("ignore")  # Python 3.12 has one for a fork beside threads
import torch
logging.getLogger("torch.cuda.lms").setLevel({level})
torch.cuda.set_limit_lms({limit} << 20)
torch.cuda.set_enabled_lms(True)
layers = [torch.ones(1 << 20, device="cuda", requires_grad=True) for _ in range(20)]
for step in range(3):
    x = torch.ones(1 << 20, device="cuda")
    for layer in layers:
        x = (x * layer).sin()
    x.sum().backward()
    print("step", step, flush=True)
child = os.fork()
if child:
    os.waitpid(child, 0)
"""


def log(device: Device, level: int, limit: int) -> list[str]:
    """Messages of the loop with so many MiB of device memory, in the midst of its output."""
    env = {"TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT": "0"}  # seconds, in a forked process for nothing
    done = device.run("-c", LOOP.format(level=level, limit=limit), capacity="512M", env=env)
    assert done.status == 0, done.stderr
    # PyTorch's handler begins lines with fields of its own.
    return [line.split("] ", 1)[-1] for line in done.stdout.splitlines()]


def test_log_of_a_program_that_is_short_of_memory(device: Device) -> None:
    enabled, short, *steps, last = log(device, logging.INFO, 48)
    assert enabled == "enabled"
    assert short.startswith("cuda:0: memory is short. LMS keeps to its limit of 48.0 MiB: ")
    assert steps == ["step 0", "step 1", "step 2"]  # it is told when it happens, and once
    assert last.startswith("cuda:0: in ") and "LMS paged in" in last and "0.0 MiB at" not in last


def test_log_of_who_takes_addresses(device: Device, tmp_path: Path) -> None:
    """Once for each line; not for who only compares them."""
    program = tmp_path / "taking.py"
    program.write_text("""\
import logging, sys
sys.stderr = sys.stdout
import torch
logging.getLogger("torch.cuda.lms").setLevel(logging.INFO)
torch.cuda.set_enabled_lms(True)
for x in torch.ones(2, 1 << 20, device="cuda").unbind():
    x = x.clone()
    assert x.untyped_storage().data_ptr()
    launch = x.data_ptr()
capsule = torch.utils.dlpack.to_dlpack(torch.ones(5, device="cuda"))
""")
    done = device.run(program, capacity="512M")
    assert done.status == 0, done.stderr
    told = [line.split("call: ")[-1] for line in done.stdout.splitlines() if "address" in line]
    assert told == [
        f"{program}:9: launch = x.data_ptr()",
        f'{program}:10: capsule = torch.utils.dlpack.to_dlpack(torch.ones(5, device="cuda"))',
    ]


def test_log_of_captured_graphs(device: Device) -> None:
    """Once."""
    code = """
import logging, torch
logging.getLogger("torch.cuda.lms").setLevel(logging.INFO)
torch.cuda.set_enabled_lms(True)
x = torch.ones(1 << 20, device="cuda")
for _ in range(2):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
"""
    done = device.run("-c", code, capacity="512M")
    assert done.status == 0, done.stderr
    assert done.stderr.count("a CUDA graph was captured") == 1
    assert "stays on the device: 4.0 MiB" in done.stderr


@pytest.mark.parametrize(
    ("level", "limit", "told"), [(logging.INFO, 400, ["enabled"]), (logging.NOTSET, 48, [])]
)
def test_log_that_has_nothing_to_tell(
    device: Device, level: int, limit: int, told: list[str]
) -> None:
    """Everything fits; or nobody asks for messages."""
    assert log(device, level, limit) == [*told, "step 0", "step 1", "step 2"]


def test_log_of_bytes_that_are_made_again(device: Device) -> None:
    code = """
import logging, sys, torch
logging.getLogger("torch.cuda.lms").setLevel(logging.INFO)
torch.ones(1, device="cuda")
made = torch.square(torch.ones(1 << 18, device="cuda"))
made.sum()
"""
    done = device.run("-c", code, env={"PYTORCH_LMS": "chaos"})
    assert done.status == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "makes bytes again" in line]
    assert len(told) == 1
    assert "and made 1.0 MiB again." in done.stderr
