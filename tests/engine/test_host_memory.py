"""Host memory for what is paged out; see checks/host_memory.py, and unit/ for its parts."""

from __future__ import annotations

from pathlib import Path

import checked
import pytest
from support.device import Device


@pytest.mark.parametrize("kernels", ["inline", "async"])
def test_host_memory(
    device: Device, tmp_path: Path, subtests: pytest.Subtests, kernels: str
) -> None:
    if not device.simulated:
        pytest.skip("only the simulated device counts and fails calls")
    env = {"PYTORCH_LMS_HOST_LEDGER": str(tmp_path / "ledger")}
    results = checked.run(device, "host_memory", capacity="256M", kernels=kernels, env=env)
    checked.expect_passed(results, subtests)


ENABLE = """
import torch
for _ in range(2):
    torch.cuda.set_enabled_lms(True)
    x = torch.arange(1000.).cuda()
    torch.cuda.reclaim_inactive()
    assert not torch.cuda.lms.is_resident(x) and x.sum().item() == 499500
    torch.cuda.set_enabled_lms(False)
"""


@pytest.mark.parametrize(("ledger", "warnings"), [("none", 0), ("/no/such/folder/ledger", 1)])
def test_a_process_may_count_alone(device: Device, ledger: str, warnings: int) -> None:
    done = device.run("-c", ENABLE, capacity="64M", env={"PYTORCH_LMS_HOST_LEDGER": ledger})
    assert done.status == 0, done.stderr
    assert done.stderr.count("holds for each process alone") == warnings, done.stderr


# What is freed first is still being copied when what is freed next no longer is.
SLOW_COPY = """
import simcuda, torch
MIB = 1 << 20
lms = torch.cuda.lms
lms.set_host_limit(1088 * MIB)
torch.cuda.set_enabled_lms(True)
small, large, other = (torch.zeros(n * MIB // 4, device="cuda") for n in (64, 1024, 64))
with lms.pin(large, other):
    torch.cuda.reclaim_inactive()
torch.cuda.synchronize()
with lms.pin(other):
    torch.cuda.reclaim_inactive()
assert [lms.is_resident(t) for t in (small, large, other)] == [False, False, True]
del large, small
begin, busy = simcuda.virtual_time(), simcuda.busy().device_to_host
torch.cuda.reclaim_inactive()
assert not lms.is_resident(other)
assert lms.stats()["lms.host_bytes.reserved"] == 1088 * MIB
print(simcuda.virtual_time() - begin)
"""


def test_memory_is_used_again_in_the_order_in_which_copies_end(device: Device) -> None:
    if not device.simulated:
        pytest.skip("in virtual time")
    settings = {"kernels": "timed", "card": "A100-SXM-40GB"}
    waited = device.json("-c", SLOW_COPY, **settings)
    assert waited < 1e6  # ns; the copy of 1 GiB takes 40 times as long


# How long short calls take while 1 GiB is page-locked ahead, those that take longer than usual.
PAGE_LOCKING = """
import simcuda, torch
torch.cuda.set_enabled_lms(True)
def paged_out():
    tensor = torch.zeros(1 << 28, device="cuda")
    torch.cuda.reclaim_inactive()
    assert not torch.cuda.lms.is_resident(tensor)
    return tensor
def waits():
    end = simcuda.virtual_time() + 1e9
    while simcuda.virtual_time() < end:
        before = simcuda.virtual_time()
        torch.cuda.mem_get_info()
        yield simcuda.virtual_time() - before
first, usual = paged_out(), min(waits())
second = paged_out()  # into what was ready, and the next one is ordered
print([wait for wait in waits() if wait > usual])
"""


def test_nothing_waits_for_more_than_a_piece_to_be_page_locked(device: Device) -> None:
    if not device.simulated:
        pytest.skip("in virtual time")
    settings = {"kernels": "timed", "card": "A100-SXM-40GB", "driver_lock": True}
    env = {"PYTORCH_LMS_HOST_LIMIT": "64G", "PYTORCH_LMS_HOST_LEDGER": "none"}
    waits = device.json("-c", PAGE_LOCKING, env=env, **settings)
    assert len(waits) == 16, waits
    assert max(waits) < 5e6, waits  # ns; the whole slab takes 160e6
    assert waits == device.json("-c", PAGE_LOCKING, env=env, **settings)
