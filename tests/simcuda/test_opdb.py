"""PyTorch's operator database agrees with the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import simcuda

PROGRAM = Path(__file__).resolve().with_name("opdb.py")

# torch 2.11.0. The rest agrees; see the README's list of limits.
DISAGREE = {
    "sparse.mm.reduce": "sparse kernels are not simulated",
    "sparse.sampled_addmm": "sparse kernels are not simulated",
    "to_sparse": "sparse tensors are not simulated",
    "tensor_split": "wants its indices on the CPU, on a card too",
}
# Their CPU kernel saves no statistics in evaluation; the CUDA kernel does, and its meta kernel
# says so.
DISAGREE_ASYNC = {"native_batch_norm", "_native_batch_norm_legit"}
# In timed mode only types and sizes can agree, and these depend on data, which reads as zero.
DISAGREE_TIMED = {
    "__getitem__": "size",
    "argwhere": "size",
    "bincount": "size",
    "combinations": "size",
    "cov": "path through the program",
    "istft": "path through the program",
    "linalg.eig": "path through the program",
    "linalg.lstsq": "size",
    "linalg.lstsq.grad_oriented": "size",
    "masked_select": "size",
    "nn.functional.fractional_max_pool3d": "indices that zeros cannot be",
    "nn.functional.one_hot": "size",
    "nonzero": "size",
    "repeat_interleave": "size",
}
SKIPPED = 12  # the CPU cannot run them


def find_failed(report):
    return {
        name: outcome["message"] or outcome["status"]
        for name, outcome in report["operators"].items()
        if outcome["status"] not in ("agree", "skipped")
    }


def sweep(build_dir, out, *arguments, **settings):
    environment = simcuda.environment(build_dir, capacity="2G", **settings)
    environment.setdefault("OMP_NUM_THREADS", "1")
    command = [sys.executable, str(PROGRAM), "--out", str(out), *arguments]
    subprocess.run(command, env=environment, check=False, capture_output=True)
    return json.loads(out.read_text())


@pytest.mark.parametrize(("kernels", "samples"), [("inline", 16), ("async", 128)])
def test_the_operator_database_agrees(build_dir, tmp_path, kernels, samples):
    """With many samples in one mode."""
    arguments = ("--samples", str(samples))
    report = sweep(build_dir, tmp_path / "report.json", *arguments, kernels=kernels)
    failed = find_failed(report)
    allowed = set(DISAGREE) | (DISAGREE_ASYNC if kernels == "async" else set())
    assert {name: why for name, why in failed.items() if name not in allowed} == {}
    assert set(failed) == allowed  # an entry that agrees now leaves the list
    assert report["skipped"] == SKIPPED
    assert report["total"] == 685
    assert report["unsimulated_launches"] == 0


def test_shapes_agree_in_timed_mode(build_dir, tmp_path):
    arguments = ("--shapes", "--samples", "8")
    report = sweep(
        build_dir, tmp_path / "report.json", *arguments, kernels="timed", card="A100-SXM-40GB"
    )
    failed = find_failed(report)
    allowed = set(DISAGREE) - {"to_sparse"} | DISAGREE_ASYNC | set(DISAGREE_TIMED)
    assert {name: why for name, why in failed.items() if name not in allowed} == {}
    assert set(failed) == allowed
    assert report["total"] == 685
    assert report["unsimulated_launches"] == 0


def test_digests_are_the_same_each_time_and_notice_other_numbers(build_dir, tmp_path):
    chosen = ("--operators", "add", "nn.functional.dropout", "linalg.svd", "nn.functional.conv2d")
    one = sweep(build_dir, tmp_path / "one.json", *chosen)
    two = sweep(build_dir, tmp_path / "two.json", *chosen, kernels="inline", schedule="late")
    few = sweep(build_dir, tmp_path / "few.json", *chosen, "--samples", "1")
    digests = [
        {name: outcome["digest"] for name, outcome in report["operators"].items()}
        for report in (one, two, few)
    ]
    assert len(digests[0]) >= 4 and all(digests[0].values())
    assert digests[0] == digests[1]
    assert all(digests[0][name] != digests[2][name] for name in digests[0])


def test_an_operator_that_ends_the_process_is_reported(build_dir, tmp_path):
    report = sweep(
        build_dir,
        tmp_path / "report.json",
        *("--operators", "add", "abs", "index_select"),
        kernels="async",
        faults="cudaStreamSynchronize:40-",
    )
    states = {outcome["status"] for outcome in report["operators"].values()}
    assert states <= {"agree", "error", "died"} and states & {"error", "died"}
