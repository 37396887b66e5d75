"""Running cells, with a program in the place of run_cell.py that only counts its runs."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import made_up
import pytest
from lms_cli import simulate
from lms_cli.bench import cells as bench_cells
from lms_cli.bench import lower_bounds, running
from lms_cli.bench.cells import Cell, Fingerprints
from lms_cli.bench.lower_bounds import Bound
from lms_cli.environments.lms_environment import Environment
from lms_cli.errors import LmsError

PROGRAM = """
import argparse, json, os, sys
parser = argparse.ArgumentParser()
for name in ("--workload", "--rival", "--batch", "--iterations", "--devices"):
    parser.add_argument(name)
args = parser.parse_args()
with open({log!r}, "a") as log:
    log.write(json.dumps([args.rival, os.environ | {{"DEVICES": args.devices}}]) + "\\n")
if args.rival in {broken!r}:
    sys.exit("it broke")
if trace := os.environ.get("PYTORCH_LMS_TRACE"):
    open(trace, "w").write({trace!r})
print(json.dumps({{"status": "ok", "step_ns": 7e6, "steps_ns": [7e6] * 6,
                  "peak_reserved_bytes": 8 << 30}}))
"""
TRACE = '{"lms_trace": 1, "name": "a trace", "card": "none"}\n'
CELLS = [made_up.IDEAL, made_up.cell("lms", 2), made_up.cell("checkpoint", 2)]


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Runs cells; returns their outcomes, and the names and variables of what really ran."""
    monkeypatch.setattr(
        simulate, "variables", lambda built, base, **settings: base | {"SETTINGS": repr(settings)}
    )
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")

    def runner(broken=(), engine="engine", rest="rest"):
        log, program = tmp_path / "log", tmp_path / "program.py"
        log.write_text("")
        program.write_text(PROGRAM.format(log=str(log), broken=broken, trace=TRACE))
        monkeypatch.setattr(bench_cells, "PROGRAM", program)
        environment = Environment(Path(sys.prefix))
        return running.Runner(
            environment, tmp_path, tmp_path / "out", Fingerprints(engine, rest), 2
        )

    def run(cells=CELLS, work=None, **settings):
        results, using = running.Results(), runner(**settings)
        if work:
            results = work(using)
        else:
            using.run(cells, results)
        lines = (tmp_path / "log").read_text().splitlines()
        return results, dict(json.loads(line) for line in lines)

    return run


def test_a_second_run_only_does_what_is_missing(bench, tmp_path):
    first, ran = bench(CELLS[:2])
    assert set(ran) == {"ideal", "lms"}
    second, ran = bench(CELLS)
    assert set(ran) == {"checkpoint"}
    assert list(second.outcomes) == CELLS
    assert second.outcomes[CELLS[1]] == first.outcomes[CELLS[1]]
    assert second.of_ideal(CELLS[1]) == 1
    assert bench(CELLS)[1] == {}


def test_half_a_file_is_no_outcome(bench, tmp_path):
    bench(CELLS)
    [kept] = (tmp_path / "out" / "cells").glob("*-lms-*")
    kept.write_text(kept.read_text()[:-20])
    assert set(bench(CELLS)[1]) == {"lms"}


def test_a_changed_engine_runs_again_what_uses_it(bench):
    bench(CELLS)
    assert set(bench(CELLS, engine="another")[1]) == {"lms"}
    assert set(bench(CELLS, rest="another")[1]) == {"ideal", "checkpoint"}


def test_fingerprints_tell_engine_from_the_rest(tmp_path, monkeypatch):
    environment = Environment(tmp_path / "environment")
    record = environment.site_packages / "torch-2.11.0.dist-info" / "RECORD"
    library = tmp_path / "built" / "lib" / "libsimcuda.so"
    program = tmp_path / "bench" / "workloads" / "gpt.py"
    for path in (record, library, program):
        path.parent.mkdir(parents=True)
        path.write_text("first")
    monkeypatch.setattr(bench_cells, "FOLDER", tmp_path / "bench")

    def prints():
        return bench_cells.fingerprints(environment, tmp_path / "built")

    before = prints()
    assert before == prints()
    record.write_text("another engine")
    assert prints().rest == before.rest and prints().engine != before.engine
    for path in (library, program):
        before = prints()
        path.write_text("another")
        assert prints().rest != before.rest and prints().engine != before.engine
    record.unlink()
    with pytest.raises(LmsError, match="does not say which files its torch has"):
        prints()


@pytest.mark.parametrize("change", [{"capacity": 5}, {"iterations": 7}])
def test_other_settings_are_other_cells(bench, change):
    bench(CELLS)
    cell = Cell(**{**vars(CELLS[1]), **change})
    assert set(bench([cell])[1]) == {"lms"}


def test_a_program_that_broke_is_tried_again(bench):
    results, _ = bench(CELLS, broken=("lms",))
    outcome = results.outcomes[CELLS[1]]
    assert (outcome.status, outcome.reason) == ("failed", "it ended with status 1: it broke")
    assert results.outcomes[CELLS[2]].ok
    assert set(bench(CELLS)[1]) == {"lms"}


def test_what_a_cell_runs_with(bench):
    _, ran = bench(CELLS)
    assert not any("PYTORCH_ALLOC_CONF" in variables for variables in ran.values())
    lms, ideal = ran["lms"], ran["ideal"]
    assert lms["PYTORCH_LMS_HOST_LIMIT"] == str(512 << 30)
    assert lms["PYTORCH_LMS_HOST_LEDGER"] == "none"
    assert lms["PYTORCH_LMS_LIMIT"] == str(5 * made_up.GIB)
    assert "'capacity': 5368709120" in lms["SETTINGS"] and "'timed'" in lms["SETTINGS"]
    assert not [name for name in ideal if name.startswith("PYTORCH_LMS")]
    assert ideal["DEVICES"] is None
    sharded = replace(made_up.IDEAL, subject=replace(made_up.SUBJECT, devices=3))
    assert bench([sharded])[1]["ideal"]["DEVICES"] == "3"


def test_what_a_cell_with_a_disk_runs_with(bench, tmp_path):
    subject = replace(made_up.SUBJECT, host=made_up.GIB, disk=7 * made_up.GIB)
    cell = replace(made_up.cell("lms", 2), subject=subject)
    _, ran = bench([cell])
    assert ran["lms"]["PYTORCH_LMS_HOST_LIMIT"] == str(made_up.GIB)
    assert ran["lms"]["PYTORCH_LMS_DISK"] == f"{tmp_path / 'out'}:{7 * made_up.GIB}"
    # The trace is recorded where all of it fits.
    _, ran = bench(work=lambda runner: runner.trace(subject, 6))
    assert ran["recording"]["PYTORCH_LMS_HOST_LIMIT"] == str(512 * made_up.GIB)
    assert "PYTORCH_LMS_DISK" not in ran["recording"]
    assert "PYTORCH_LMS_DISK" not in bench([made_up.cell("lms", 2)])[1]["lms"]


def measure(runner):
    return running.measure(runner, [made_up.SUBJECT], ["ideal", "lms", "checkpoint"], [2, 4], 6)


def test_the_ideal_says_how_much_memory_the_others_get(bench):
    results, ran = bench(work=measure)
    assert set(ran) == {"ideal", "lms", "checkpoint"}
    assert [(cell.rival, cell.capacity >> 30) for cell in results.outcomes if cell.ratio] == [
        *(("lms", 4), ("checkpoint", 4), ("lms", 2), ("checkpoint", 2)),
    ]


def test_nothing_is_compared_with_an_ideal_that_failed(bench):
    results, ran = bench(work=measure, broken=("ideal",))
    assert set(ran) == {"ideal"} and len(results.outcomes) == 1


def test_a_subject_is_traced_once_and_bounded_by_cell(bench, monkeypatch):
    def bound(trace, capacity, card, host, disk):
        assert trace.name == "a trace" and card["name"] == made_up.SUBJECT.card
        assert (host, disk) == (made_up.SUBJECT.host, made_up.SUBJECT.disk)
        return Bound(1e6, 2e6, capacity, 0)

    def traced(runner):
        results = measure(runner)
        results.bounds = running.bounds(runner, results)
        return results

    monkeypatch.setattr(lower_bounds, "bound", bound)
    results, _ = bench(work=traced)
    assert [cell for cell in results.outcomes if cell.ratio] == list(results.bounds)
    assert all(bound.h2d_bytes == cell.capacity for cell, bound in results.bounds.items())
    assert bench(work=traced)[1] == {}  # the trace is kept as the cells are


def test_bounds_stand_without_an_optimum(bench, monkeypatch, capsys):
    def optima(environment, trace, capacities, card):
        raise LmsError("there is no SciPy", "Install it.")

    results, _ = bench(CELLS)
    monkeypatch.setattr(lower_bounds, "bound", lambda *arguments: Bound(1e6, 2e6, 0, 0))
    found = bench(work=lambda runner: running.bounds(runner, results))[0]
    assert [bound.optimum_ns for bound in found.values()] == [None, None]
    monkeypatch.setattr(lower_bounds, "optima", lambda e, t, sizes, c: dict.fromkeys(sizes, (3, 4)))
    found = bench(work=lambda runner: running.bounds(runner, results))[0]
    assert [(b.optimum_ns, b.copying_ns) for b in found.values()] == [(3, 4)] * 2
    monkeypatch.setattr(lower_bounds, "optima", optima)
    found = bench(work=lambda runner: running.bounds(runner, results))[0]
    assert [bound.floor_ns for bound in found.values()] == [2e6, 2e6]
    assert "no optimum for gpt-tiny, batch 4, A100-SXM-40GB: there is" in capsys.readouterr().err


def test_a_workload_that_cannot_be_traced_has_no_bound(bench, capsys):
    results, _ = bench(CELLS)
    assert bench(work=lambda r: running.bounds(r, results), broken=("recording",))[0] == {}
    assert "no bound for gpt-tiny" in capsys.readouterr().err
