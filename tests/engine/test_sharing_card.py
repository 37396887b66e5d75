"""Processes that know nothing of each other share a card; see checks/sharing_card.py.

Each of the two has tensors that take nine tenths of the card.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import checked
import pytest
from support.child import Child
from support.device import Device

PROGRAM = checked.CHECKS / "sharing_card.py"
CAPACITY = "128M"
MOST = ["make", 11]  # tensors, which take nine tenths of the card
REST = 0.8  # seconds after which a process is at rest, for certain
SLOW = 2.5  # seconds after which one that does not look at others gives nothing
TIMES = 6
RECORD = "6Q"  # of the card's ledger; the first number: bytes that a process has


@pytest.fixture(scope="module")
def alone(device: Device) -> Callable[[int], str]:
    """The digest of a process that has used its tensors so often, with a card for itself."""
    if not device.simulated:
        pytest.skip("on a GPU it takes another one whose capacity can be chosen")
    digests = {}
    with device.serve(PROGRAM, "off", capacity="1G") as child:
        child.ask(MOST)
        for times in range(1, TIMES + 1):
            child.ask("touch")
            digests[times] = child.ask("digest")
    return digests.__getitem__


@contextlib.contextmanager
def two(
    device: Device, folder: Path, ledger: str | None = None, **settings: Any
) -> Iterator[tuple[Child, Child]]:
    """Two processes on one card."""
    env = {"PYTORCH_LMS_HOST_LEDGER": ledger or str(folder / "ledger")}
    settings |= {"capacity": CAPACITY, "shared": folder / "card", "env": env}
    with (
        device.serve(PROGRAM, "on", **settings) as first,
        device.serve(PROGRAM, "on", **settings) as second,
    ):
        yield first, second


def send(child: Child, sent: signal.Signals) -> None:
    assert child._process is not None
    child._process.send_signal(sent)


def at_once(*requests: tuple[Child, Any]) -> None:
    """Asks several processes, each in a thread."""
    failures: list[BaseException] = []

    def ask(child: Child, request: Any) -> None:
        try:
            child.ask(request)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=request) for request in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


@pytest.mark.compatibility("Threads and processes", "Processes that share a card", "works")
@pytest.mark.parametrize("kernels", ["inline", "async"])
def test_they_take_turns(
    device: Device, alone: Callable[[int], str], tmp_path: Path, kernels: str
) -> None:
    with two(device, tmp_path, kernels=kernels) as (first, second):
        first.ask(MOST)
        first.ask("touch")
        time.sleep(REST)
        second.ask(MOST)
        second.ask("touch")
        gone, here = first.ask("state"), second.ask("state")
        assert gone["reserved"] < 0.1 and gone["paged_out"] > 0.8
        assert here["reserved"] > 0.8 and here["paged_out"] == 0
        time.sleep(REST)
        first.ask("touch")
        here, gone = first.ask("state"), second.ask("state")
        assert here["reserved"] > 0.8 and here["paged_out"] < 0.95, "it paged its own tensors"
        assert gone["reserved"] < 0.1
        time.sleep(REST)
        second.ask("touch")
        assert second.ask("digest") == alone(2)
        time.sleep(REST)
        assert first.ask("digest") == alone(2)
        assert first.ask("state")["errors"] == second.ask("state")["errors"] == 0


def test_both_run_at_once(device: Device, alone: Callable[[int], str], tmp_path: Path) -> None:
    with two(device, tmp_path, kernels="async") as (first, second):
        at_once((first, MOST), (second, MOST))
        at_once((first, ["touch", TIMES]), (second, ["touch", TIMES]))
        assert first.ask("digest") == second.ask("digest") == alone(TIMES)
        for child in (first, second):
            state = child.ask("state")
            assert state["errors"] == 0 and state["reserved"] <= state["limit"] < 1


def test_what_is_taken_is_written_down_at_once(device: Device, tmp_path: Path) -> None:
    """Or others would not ask for it until the next look of who has taken it."""
    if not device.simulated:
        pytest.skip("only simulated cards are shared for certain")
    env = {"PYTORCH_LMS_HOST_LEDGER": str(tmp_path / "ledger")}
    settings = {"capacity": CAPACITY, "shared": tmp_path / "card", "env": env}
    with device.serve(PROGRAM, "on", **settings) as child:
        child.ask("look_no_more")
        child.ask(MOST)
        (ledger,) = tmp_path.glob("ledger.card-*")
        _header, record, *_ = struct.iter_unpack(RECORD, ledger.read_bytes())
        assert record[0] == child.ask("state")["reserved"] * (128 << 20) > 0


def test_what_a_killed_process_had_is_free(
    device: Device, alone: Callable[[int], str], tmp_path: Path
) -> None:
    env = {"PYTORCH_LMS_HOST_LEDGER": str(tmp_path / "ledger")}
    settings = {"capacity": CAPACITY, "shared": tmp_path / "card", "env": env}
    with device.serve(PROGRAM, "on", **settings) as first:
        first.ask(MOST)
        time.sleep(REST)
        code = f"import sys; sys.argv[1:] = ['on']; exec(open({str(PROGRAM)!r}).read())"
        second = subprocess.Popen(
            [device.python, "-c", code],
            env=device.environment(**settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert second.stdin is not None and second.stdout is not None
        second.stdin.write(json.dumps(MOST) + "\n")
        second.stdin.flush()
        assert second.stdout.readline()
        assert first.ask("state")["reserved"] < 0.1
        second.kill()
        second.communicate()
        first.ask("touch")
        state = first.ask("state")
        assert state["reserved"] > 0.8 and state["paged_out"] < 0.95
        assert first.ask("digest") == alone(1)


def test_the_card_is_asked_before_a_request_fails(device: Device, tmp_path: Path) -> None:
    """The limit is from a moment at which a process without LMS had nearly all."""
    if not device.simulated:
        pytest.skip("only simulated cards are shared for certain")
    settings = {"capacity": CAPACITY, "shared": tmp_path / "card"}
    with (
        device.serve(PROGRAM, "off", **settings) as first,
        device.serve(PROGRAM, "on", **settings) as second,
    ):
        first.ask(MOST)
        second.ask(["hold", 1])
        assert second.ask("state")["limit"] < 0.2
        first.ask("drop")
        second.ask(["hold", 64])
        assert second.ask("state")["limit"] > 0.8


def test_a_stopped_process_gives_nothing_and_stops_nobody(
    device: Device, alone: Callable[[int], str], tmp_path: Path
) -> None:
    with two(device, tmp_path) as (first, second):
        first.ask(MOST)
        send(first, signal.SIGSTOP)
        try:
            second.ask(MOST)
            second.ask("touch")
            state = second.ask("state")
            assert state["reserved"] < 0.2 and state["paged_out"] > 0.5 and state["errors"] == 0
            assert second.ask("digest") == alone(1)
        finally:
            send(first, signal.SIGCONT)
        assert first.ask("state")["reserved"] > 0.8
        first.ask("touch")
        assert first.ask("digest") == alone(1)


def test_before_a_request_fails_the_slow_are_waited_for(device: Device, tmp_path: Path) -> None:
    """Where the machine has too much to do, a process gives nothing for seconds."""
    with two(device, tmp_path) as (first, second):
        first.ask(MOST)
        send(first, signal.SIGSTOP)
        time.sleep(SLOW)
        second.ask("state")  # it uses the device from here on
        resume = threading.Timer(1, send, (first, signal.SIGCONT))
        resume.start()
        second.ask(["hold", 64])
        resume.join()
        state = second.ask("state")
        assert state["reserved"] >= 0.5 and state["errors"] == 0
        assert first.ask("state")["reserved"] <= 0.5


def test_a_workspace_keeps_no_memory_from_others(device: Device, tmp_path: Path) -> None:
    """Of cuBLAS, for a thread that multiplies when memory is one segment already."""
    settings = {"capacity": "512M", "shared": tmp_path / "card", "cublas": True}
    settings["env"] = {
        "PYTORCH_LMS_HOST_LEDGER": str(tmp_path / "ledger"),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8",
        "TORCH_CUBLAS_WORKSPACE_CACHE": "1",  # otherwise PyTorch 2.15 keeps none
    }
    with (
        device.serve(PROGRAM, "on", **settings) as first,
        device.serve(PROGRAM, "on", **settings) as second,
    ):
        first.ask("multiply")
        first.ask(["make", 60])
        first.ask("go_back")
        assert first.ask("state")["reserved"] > 0.8 and first.ask("state")["paged_out"] > 0.1
        time.sleep(REST)
        second.ask(["make", 44])
        assert first.ask("state")["reserved"] < 0.1
        assert second.ask("state")["reserved"] > 0.8 and second.ask("state")["paged_out"] == 0


def test_without_a_ledger_each_counts_alone(
    device: Device, alone: Callable[[int], str], tmp_path: Path
) -> None:
    with two(device, tmp_path, ledger="none") as (first, second):
        first.ask(MOST)
        time.sleep(REST)
        second.ask(MOST)
        second.ask("touch")
        assert first.ask("state")["reserved"] > 0.8 and first.ask("state")["paged_out"] == 0
        assert second.ask("state")["paged_out"] > 0.5
        assert second.ask("digest") == alone(1)
    assert os.listdir(tmp_path) == ["card"]


def test_a_process_ends_while_it_gives_way(device: Device, tmp_path: Path) -> None:
    with two(device, tmp_path, kernels="async", copy_bandwidth="50M") as (first, second):
        first.ask(MOST)
        time.sleep(REST)
        asking = threading.Thread(target=second.ask, args=(MOST,))
        asking.start()
        while first.ask("state")["paged_out"] == 0:
            time.sleep(0.01)
        assert first._end() == 0
        asking.join()
        assert second.ask("state")["reserved"] > 0.8


FORK = """
import os, torch
torch.cuda.set_enabled_lms(True)
x = torch.ones(1000, device="cuda")
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0 and x.sum() == 1000
"""


def test_a_forked_process_ends(device: Device, tmp_path: Path) -> None:
    if not device.simulated:
        pytest.skip("only simulated cards are shared for certain")
    env = {"PYTORCH_LMS_HOST_LEDGER": str(tmp_path / "ledger")}
    done = device.run("-c", FORK, capacity="64M", shared=tmp_path / "card", env=env, timeout=60)
    assert done.status == 0, done.stderr
