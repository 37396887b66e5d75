"""`lms bench --jobs`: models at once, in virtual time."""

from __future__ import annotations

import argparse
import json
import sys
from itertools import chain
from pathlib import Path

import pytest
from lms_bench import run_jobs
from lms_cli import simulate
from lms_cli.bench import cells, jobs
from lms_cli.bench.running import Results
from lms_cli.verbs import bench

JOBS = ("gpt-tiny@8:12", "gpt-tiny@8:40", "gpt-tiny@8:30")


@pytest.fixture
def run(device, tmp_path, monkeypatch):
    """The command with more arguments, its results in the test's folder; returns its status."""
    if not device.simulated:
        pytest.skip("jobs run in virtual time")
    monkeypatch.setattr(simulate, "build", lambda environment: device.build)
    parser = argparse.ArgumentParser()
    bench.configure_parser(parser.add_subparsers())
    always = ["bench", "--environment", sys.prefix, "--out", str(tmp_path)]
    return lambda *more: bench.execute(parser.parse_args([*always, *more]))


def test_the_whole_command(run, tmp_path, capsys):
    options = ["--devices", "2", "--jobs", ",".join(JOBS), "--turn-seconds", "0.05"]
    page = tmp_path / "tables.md"
    assert run(*options, "--markdown", str(page)) == 0
    shown = capsys.readouterr().out
    command = f"./scripts/lms bench {' '.join(options)}"
    assert f"Made by `{command}`." in page.read_text()
    assert "| a pool, 2 devices |" in page.read_text()
    pictures = [Path(line[9:]) for line in shown.splitlines() if line.startswith("picture: ")]
    assert len(pictures) == 2 and all(path.is_file() for path in pictures)
    assert "| without LMS, 2 devices | 0 of 3 fit |" in page.read_text()
    alone, one, two, without = json.loads((tmp_path / jobs.RESULTS).read_text())["runs"]
    assert without["status"] == "oom" and "out of memory" in without["reason"]
    assert "out of memory" not in shown
    assert [len(spans) for spans in two["spans"]] == [12, 40, 30]
    for run in (alone, one, two):
        # A device computes for one job at a time, and for none when it is over.
        for device_spans in by_device(run["spans"]).values():
            ends = [end for _, end in device_spans]
            begins = [begin for begin, _ in device_spans]
            assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=False))
        assert (
            run["bound_ns"]
            < run["makespan_ns"]
            == max(end for spans in run["spans"] for _, _, end in spans)
        )
    assert set(by_device(one["spans"])) == {0} and set(by_device(two["spans"])) == {0, 1}


def test_where_all_fit_lms_costs_nothing(run, tmp_path):
    """A job on each device without LMS is the comparison. Of models that keep a device busy."""
    large = "gpt-tiny@1024:3,gpt-tiny@1024:10,gpt-tiny@1024:7"
    assert run("--devices", "2", "--jobs", large, "--ratio", "0.3") == 0
    _alone, _one, pool, without = json.loads((tmp_path / jobs.RESULTS).read_text())["runs"]
    assert without["status"] == "ok" and without["paged_bytes"] == pool["paged_bytes"] == 0
    assert [spans[0][0] for spans in without["spans"]] == [1, 0, 1]
    assert pool["makespan_ns"] <= 1.01 * without["makespan_ns"]


def test_jobs_are_spread_by_how_long_they_take():
    assert jobs.spread([1, 5, 3, 3], 2) == [[1, 0], [2, 3]]
    assert jobs.spread([1], 2) == [[0], []]


def by_device(spans):
    """When steps began and ended there, in order."""
    found = {}
    for number, begin, end in sorted(chain(*spans), key=lambda span: span[1]):
        found.setdefault(number, []).append((begin, end))
    return found


def test_a_model_that_fails_is_told(device):
    """A job that fails ends alone, and the run is no result."""
    if not device.simulated:
        pytest.skip("jobs run in virtual time")
    settings = {"kernels": "timed", "card": "A100-SXM-40GB", "capacity": "100M"}
    variables = {"PYTORCH_LMS": "1", "PYTORCH_LMS_HOST_LIMIT": str(1 << 40)}
    found = device.json(
        *(jobs.PROGRAM, "--way", "pool", "--turn-seconds", 1, "gpt-tiny@8:3", "gpt2-xl@1:1"),
        **settings,
        env=variables,
    )
    assert found["status"] == "oom"
    assert found["reason"].startswith("gpt2-xl: ") and "gpt-tiny" not in found["reason"]
    assert [len(spans) for spans in found["spans"]] == [3, 0]


def test_the_bound():
    """All devices compute to the end, or the longest job takes longer."""
    ideals = Results()
    names = ("gpt-tiny", "bert-large")
    for name, step_ns in zip(names, (10, 100)):
        cell = cells.ideal(cells.subject(name, "A100-SXM-40GB"), 6)
        ideals.outcomes[cell] = cells.Outcome("ok", "", {"step_ns": step_ns})
    some = tuple(jobs.parse(f"{name}:10", "A100-SXM-40GB") for name in (*names, "gpt-tiny"))
    compared = jobs.Compared(some, ideals, {})
    assert compared.bound_ns(1) == 1200
    assert compared.bound_ns(2) == 1000


def test_job_of_a_command_line():
    job = jobs.parse("gpt-tiny", "A100-SXM-40GB")
    assert job.title == "gpt-tiny@8:40"
    assert jobs.parse("bert-large@4:7", "A100-SXM-40GB").title == "bert-large@4:7"
    assert run_jobs.parse("bert-large@4:7") == run_jobs.Trained("bert-large", 4, 7)
