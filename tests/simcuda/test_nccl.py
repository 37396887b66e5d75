"""NCCL between simulated devices, of one process and of several."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import simcuda

PROGRAM = Path(__file__).parent / "collectives.py"


@pytest.mark.parametrize("kernels", ["inline", "async"])
def test_every_collective_between_processes(build_dir, kernels):
    environment = simcuda.environment(build_dir, capacity="256M", devices=3, kernels=kernels)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    done = subprocess.run(
        [*command, PROGRAM], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_devices_of_one_process(simulate):
    simulate(
        """
        import torch
        from torch.cuda import comm, nccl
        devices = range(3)
        given = [torch.arange(100_000.0, device=f"cuda:{i}") + i for i in devices]
        hosts = [tensor.cpu() for tensor in given]
        nccl.all_reduce(given)
        assert all(tensor.cpu().equal(sum(hosts)) for tensor in given)
        copies = comm.broadcast(hosts[1].cuda(), devices)
        assert all(tensor.cpu().equal(hosts[1]) for tensor in copies)
        """,
        devices=3,
        kernels="async",
    )


def test_a_result_that_is_not_waited_for_is_wrong(simulate):
    simulate(
        """
        import torch
        from simcuda.gate import held
        from torch.cuda import nccl
        given = [torch.ones(1000, device=f"cuda:{i}") for i in range(2)]
        for i in range(2):
            torch.cuda.synchronize(i)
        streams = [torch.cuda.Stream(i) for i in range(2)]
        with held(streams[1]):  # it comes late to the collective
            nccl.all_reduce(given, streams=streams)
            with torch.cuda.stream(torch.cuda.Stream(0)):
                early = given[0].clone().cpu()
        for stream in streams:
            stream.synchronize()
        assert early.eq(1).all() and given[0].eq(2).all()
        """,
        devices=2,
        kernels="async",
    )


@pytest.mark.parametrize("card", ["A100-SXM-40GB", "RTX-4090-24GB"])
def test_collectives_in_virtual_time(build_dir, card):
    environment = simcuda.environment(build_dir, kernels="timed", card=card)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, PROGRAM.with_name("timed_collectives.py"), card],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_timed_mode_refuses_ranks_of_one_process(simulate):
    simulate(
        """
        import torch
        from torch.cuda import nccl
        try:
            nccl.all_reduce([torch.ones(1000, device=f"cuda:{i}") for i in range(2)])
        except RuntimeError as error:
            assert "NCCL Error 5" in str(error), error
        else:
            raise AssertionError("it ran")
        """,
        devices=2,
        kernels="timed",
        card="A100-SXM-40GB",
    )
