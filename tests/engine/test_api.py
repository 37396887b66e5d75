"""The Python interface: settings, switching, statistics, the environment, other memory features."""

from __future__ import annotations

import os
import subprocess

import checked
import pytest
from support.child import Finished
from support.device import Device


@pytest.mark.parametrize("program", ["settings", "switching", "upstream"])
def test_interface(device: Device, subtests: pytest.Subtests, program: str) -> None:
    results = checked.run(device, f"api_{program}", capacity="256M", devices=2)
    checked.expect_passed(results, subtests)


@pytest.mark.parametrize("program", ["upstream"])
def test_interface_under_chaos(device: Device, subtests: pytest.Subtests, program: str) -> None:
    env = {"PYTORCH_LMS": "chaos"}
    results = checked.run(device, f"api_{program}", capacity="256M", devices=2, env=env)
    checked.expect_passed(results, subtests)


STATE = """
import json, torch
before = torch.cuda.is_initialized()
x = torch.arange(100.).cuda()
y = (x * 2).sum().item()
print(json.dumps({
    "initialized": before,
    "enabled": torch.cuda.get_enabled_lms(),
    "limit": torch.cuda.get_limit_lms(),
    "host_limit": torch.cuda.lms.get_host_limit(),
    "reclaimed": torch.cuda.memory_stats()["reclaimed"],
    "sum": y,
}))
"""


def run(device: Device, code: str, **env: str) -> Finished:
    return device.run("-c", code, capacity="256M", env=env)


def test_environment_enables(device: Device) -> None:
    state = run(
        device,
        STATE,
        PYTORCH_LMS="1",
        PYTORCH_LMS_LIMIT="64M",
        PYTORCH_LMS_HOST_LIMIT=str(96 << 20),
    ).json()
    assert state == {
        "initialized": False,  # importing torch does not initialize CUDA
        "enabled": True,
        "limit": 64 << 20,
        "host_limit": 96 << 20,
        "reclaimed": 0,
        "sum": 9900.0,
    }


def test_environment_chaos(device: Device) -> None:
    state = run(device, STATE, PYTORCH_LMS="chaos").json()
    assert state["enabled"] and state["reclaimed"] > 0 and state["sum"] == 9900.0


@pytest.mark.parametrize("value", ["", "0"])
def test_environment_leaves_it_off(device: Device, value: str) -> None:
    state = run(device, STATE, PYTORCH_LMS=value, PYTORCH_LMS_LIMIT=str(64 << 20)).json()
    assert not state["enabled"] and state["limit"] == 64 << 20


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("PYTORCH_LMS", "yes", ["'yes'", "0, 1 or chaos"]),
        ("PYTORCH_LMS_CONF", "original", ["'original'", "policy:NAME"]),
        ("PYTORCH_LMS_CONF", "policy:best", ["policy best", "planned, original"]),
        ("PYTORCH_LMS_CONF", "recompute:never", ["'recompute:never'", "recompute:off"]),
        ("PYTORCH_LMS_CONF", "recompute:off,", ["'recompute:off,'"]),
        ("PYTORCH_LMS_LIMIT", "1X", ["PYTORCH_LMS_LIMIT", "'1X'", "bytes"]),
        ("PYTORCH_LMS_LIMIT", "G", ["PYTORCH_LMS_LIMIT", "'G'", "bytes"]),
        ("PYTORCH_LMS_HOST_LIMIT", "-5", ["PYTORCH_LMS_HOST_LIMIT", "'-5'", "bytes"]),
    ],
)
def test_environment_with_a_wrong_value(
    device: Device, name: str, value: str, words: list[str]
) -> None:
    done = run(device, "import torch; print('imported'); torch.cuda.init()", **{name: value})
    assert done.status == 1
    assert done.stdout == "imported\n"  # programs that do not use CUDA are left alone
    errors = [line for line in done.stderr.splitlines() if "DeferredCudaCallError:" in line]
    assert len(errors) == 1 and all(word in errors[0] for word in words), done.stderr


def test_environment_needs_no_device(device: Device) -> None:
    """A process without a GPU, such as a data loader on another machine, is not disturbed."""
    hide = "import os; os.environ['CUDA_VISIBLE_DEVICES'] = ''"
    code = f"{hide}; import torch; print(torch.ones(3).sum().item(), torch.cuda.is_available())"
    done = run(device, code, PYTORCH_LMS="1")
    assert done.status == 0, done.stderr
    assert done.stdout == "3.0 False\n"


def test_enabling_before_cuda_is_initialized(device: Device) -> None:
    code = """
import torch
torch.cuda.set_limit_lms(64 << 20)
torch.cuda.set_enabled_lms(True)
tensors = [torch.full((1 << 20,), float(i), device="cuda") for i in range(40)]
assert [t[0].item() for t in tensors] == list(range(40))
assert torch.cuda.memory_reserved() <= 64 << 20
assert torch.cuda.get_limit_lms() == 64 << 20
"""
    done = run(device, code)
    assert done.status == 0, done.stderr


@pytest.mark.compatibility("Streams and memory", "`backend:cudaMallocAsync`", "clear error")
def test_cuda_malloc_async_backend_gets_a_clear_error(device: Device) -> None:
    code = """
import torch
try:
    torch.cuda.set_enabled_lms(True)
except RuntimeError as error:
    print(error)
print(torch.cuda.get_enabled_lms(), torch.ones(3, device="cuda").sum().item())
torch.ones(3, device="cuda").data_ptr()
"""
    done = run(device, code, PYTORCH_ALLOC_CONF="backend:cudaMallocAsync")
    assert done.status == 0, done.stderr
    message, state = done.stdout.strip().splitlines()
    assert "native CUDA caching allocator" in message and "PYTORCH_ALLOC_CONF" in message
    assert state == "False 3.0"


@pytest.mark.compatibility("Streams and memory", "Pluggable allocators", "clear error")
def test_pluggable_allocator_gets_a_clear_error(device: Device) -> None:
    code = """
import ctypes, torch
library = torch.cuda.memory.CUDAPluggableAllocator
from torch._C import _cuda_customAllocator
malloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
functions = malloc(lambda *a: 0), free(lambda *a: None)
addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
torch._C._cuda_changeCurrentAllocator(_cuda_customAllocator(*addresses))
try:
    torch.cuda.set_enabled_lms(True)
except RuntimeError as error:
    print(error)
"""
    done = run(device, code)
    assert done.status == 0, done.stderr
    assert "change_current_allocator" in done.stdout


@pytest.mark.compatibility("Streams and memory", "`expandable_segments`", "works")
def test_expandable_segments(device: Device) -> None:
    code = """
import torch
torch.cuda.set_limit_lms(64 << 20)
torch.cuda.set_enabled_lms(True)
tensors = [torch.full((1 << 20,), float(i), device="cuda") for i in range(40)]
assert [t[0].item() for t in tensors] == list(range(40))
"""
    done = run(device, code, PYTORCH_ALLOC_CONF="expandable_segments:True")
    assert done.status == 0, done.stderr


def test_without_a_device(device: Device) -> None:
    code = """
import torch, warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    torch.cuda.set_enabled_lms(True)
print([str(warning.message) for warning in told])
try:
    torch.cuda.lms.stats()
except ValueError as error:
    print(error)
print((torch.ones(3) + 1).sum().item())
"""
    hidden = {"LD_PRELOAD": "", "CUDA_VISIBLE_DEVICES": "", "PATH": os.environ["PATH"]}
    done = subprocess.run([device.python, "-c", code], env=hidden, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "['Large Model Support has nothing to do: there is no CUDA device']",
        "there is no CUDA device: this process sees none",
        "6.0",
    ]
