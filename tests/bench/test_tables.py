"""Tables, JSON and plots, from outcomes that are made up."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import made_up
import pytest
from lms_cli.bench import reporting, tables
from lms_cli.bench.cells import Outcome
from lms_cli.bench.lower_bounds import Bound
from lms_cli.bench.running import Results
from lms_cli.environments.lms_environment import Environment
from lms_cli.errors import LmsError


@pytest.fixture
def environment():
    return Environment(Path(sys.prefix))


def test_speeds_are_shares_of_the_ideal():
    table = tables.speeds(made_up.results(), made_up.SUBJECT)
    assert table.title == "gpt-tiny, batch 4, A100-SXM-40GB: ideal 10.0 ms, needs 10.0 GiB"
    assert table.headings == ("at", "0.9", "2")
    assert table.rows == (
        ("lms", "100.0 %", "62.5 %"),
        ("original", "100.0 %", "failed"),
        ("checkpoint", "80.0 %", "no memory"),
    )


def test_a_sharded_training_has_all_rivals_in_one_table():
    subject = replace(made_up.SUBJECT, devices=2)
    results = Results(
        {
            replace(cell, subject=subject): outcome
            for cell, outcome in made_up.results().outcomes.items()
        }
    )
    _, ranks = tables.tables(results)
    assert ranks.title == "gpt-tiny, batch 4, A100-SXM-40GB, FSDP2 over 2: of one rank"
    assert ranks.rows[0][:3] == ("-", "ideal", "100.0 %")
    assert [row[:2] for row in ranks.rows[4:]] == [
        ("2", "lms"),
        ("2", "original"),
        ("2", "checkpoint"),
    ]
    assert ranks.rows[4] == (
        *("2", "lms", "62.5 %", "16.0", "4.00", "6.00", "10.0", "3.0", "9.0", "2.0"),
    )
    assert ranks.rows[6] == ("2", "checkpoint", "no memory", *"-------")


def test_the_traffic_of_lms_is_held_against_the_bound():
    results = made_up.results()
    _, lms = tables.tables(results)
    assert lms.rows[1] == (
        *("2", "62.5 %", "-", "-", "-", "16.0", "4.00", "6.00", "-", "-", "0.00"),
        *("25.0 %", "3.0", "-"),
    )
    results.bounds[made_up.cell("lms", 2)] = Bound(
        12.0 * made_up.MS,
        14 * made_up.MS,
        2e9,
        5e9,
        replay_ns=15.2 * made_up.MS,
        optimum_ns=10.4 * made_up.MS,
        copying_ns=15.0 * made_up.MS,
    )
    speeds, lms = tables.tables(results)
    assert lms.rows[1][2:5] == ("75.0 %", "87.5 %", "65.0 %")
    assert lms.rows[1][5:10] == ("16.0", "4.00", "6.00", "2.00", "1.20")
    assert lms.rows[1][-1] == "-5.0 %"
    assert speeds.rows[-4:] == (
        ("the bound", "-", "83.3 %"),
        ("the floor", "-", "71.4 %"),
        ("the optimum of copies", "-", "66.7 %"),
        ("the optimum", "-", "96.2 %"),
    )
    assert all(len(row) == len(lms.headings) for row in lms.rows)
    results.outcomes[made_up.cell("lms", 2)] = made_up.fine(16, (4e9, 6e9), 0.25, made=7e9)
    _, lms = tables.tables(results)
    assert lms.rows[1][10] == "7.00"
    assert lms.rows[1][-1] == "-"  # the replay makes nothing again


def test_what_only_copies_is_held_against_the_optimum_of_copies():
    results = made_up.results()
    cell = made_up.cell("lms_copies", 2)
    results.outcomes[cell] = made_up.fine(20)
    results.bounds[cell] = Bound(
        *(12.0 * made_up.MS, 14.0 * made_up.MS, 2e9, 5e9),
        optimum_ns=10.0 * made_up.MS,
        copying_ns=15.0 * made_up.MS,
    )
    *_, copies = tables.tables(results)
    assert copies.rows[0][4] == "75.0 %"
    results.bounds[cell] = replace(results.bounds[cell], copying_ns=None)
    *_, copies = tables.tables(results)
    assert copies.rows[0][4] == "-"


def test_a_cell_of_lms_that_failed_has_its_row():
    results = made_up.results()
    results.outcomes[made_up.cell("lms", 2)] = Outcome("failed", "RuntimeError: no luck", {})
    _, lms = tables.tables(results)
    assert lms.rows[1] == ("2", "failed", *"-" * 12)


def test_an_ideal_that_failed_leaves_its_rivals_out():
    results = Results({made_up.IDEAL: Outcome("failed", "RuntimeError: no luck", {})})
    table = tables.speeds(results, made_up.SUBJECT)
    assert table.title.endswith("the ideal failed") and table.rows == ()
    assert list(tables.reasons(results)) == ["gpt-tiny, ideal: RuntimeError: no luck"]


def test_markdown_says_how_it_was_made():
    text = tables.markdown(made_up.results(), "./scripts/lms bench --ratio 2")
    assert text.startswith("Made by `./scripts/lms bench --ratio 2`.\n")
    assert "| at | 0.9 | 2 |\n| --- | ---: | ---: |\n| lms | 100.0 % | 62.5 % |\n" in text
    assert text.endswith("- gpt-tiny, original: RuntimeError: no luck\n")


@pytest.mark.parametrize("old", ["", "old tables\n", "| old |\n| --- |\n"])
def test_a_page_keeps_what_is_before_its_mark(old):
    assert tables.page(old, "new tables\n") == "new tables\n"
    page = f"# Title\n\nText.\n\n{tables.MARK}\n\n"
    assert tables.page(page + old, "new tables\n") == page + "new tables\n"


def test_the_terminal_gets_every_figure(capsys):
    tables.show(made_up.results())
    shown = capsys.readouterr().out
    for text in ("62.5 %", "no memory", "16.0", "25.0 %", "failed: gpt-tiny, original: Runtime"):
        assert text in shown
    assert "…" not in shown


def test_json_has_the_results_and_nothing_of_the_machine(tmp_path):
    reporting.write(made_up.results(), tmp_path, "the command")
    report = json.loads((tmp_path / "results.json").read_text())
    assert report["command"] == "the command"
    by_cell = {(row["rival"], row["ratio"]): row for row in report["cells"]}
    assert by_cell["lms", 2]["of_ideal"] == 0.625
    assert by_cell["lms", 2]["capacity_bytes"] == 5 * made_up.GIB
    assert by_cell["checkpoint", 2]["status"] == "oom"
    assert by_cell["checkpoint", 2]["of_ideal"] is None
    assert "machine" not in (tmp_path / "results.json").read_text()


@pytest.mark.parametrize(("left_out", "drawn"), [(0, "2"), (2, "3.7")])
def test_one_ratio_is_drawn(tmp_path, left_out, drawn):
    results = made_up.results()
    results.outcomes[made_up.cell("lms", 3.7)] = made_up.fine(20)
    kept = {cell: found for cell, found in results.outcomes.items() if cell.ratio != left_out}
    reporting.write(Results(kept), tmp_path, "the command")
    [picture] = json.loads((tmp_path / "gantt.json").read_text()).values()
    assert picture["title"].endswith(f"need {drawn} times the memory")
    assert set(picture["rivals"]) == {"ideal", "lms"}


def test_plots(tmp_path, environment):
    reporting.write(made_up.results(), tmp_path, "the command")
    pictures = reporting.draw(environment, tmp_path)
    slug = made_up.SUBJECT.slug
    assert [path.name for path in pictures] == [f"{slug}.png", f"{slug}-gantt.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)


def test_plots_that_cannot_be_drawn(tmp_path, environment):
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(LmsError, match="the plots cannot be drawn"):
        reporting.draw(environment, tmp_path)
