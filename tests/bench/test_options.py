"""The command line of `lms bench`."""

from __future__ import annotations

import pytest
from lms_bench import catalogue
from lms_cli import cli
from lms_cli.bench import cells as bench_cells
from lms_cli.verbs import bench


@pytest.fixture
def lms(monkeypatch):
    monkeypatch.setattr(cli.toolbox, "ensure", lambda arguments: None)
    return lambda *arguments: cli.main(["bench", *arguments])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workload", "bert"], "there is no workload bert: expected one of gpt-tiny, bert-large"),
        (["--workload", "bert-large@many"], "'many' is no batch"),
        (["--workload", "bert-large@0"], "'0' is no batch"),
        (["--rival", "magic"], "there is no rival magic"),
        (["--card", "A1000"], "there is no card A1000"),
        (["--ratio", "0"], "--ratio 0: out of range"),
        (["--ratio", "nan"], "--ratio nan: out of range"),
        (["--iterations", "3"], "--iterations 3: too few"),
        (["--parallel", "0"], "--parallel 0: at least one"),
        (["--host", "0"], "--host 0: LMS cannot do without"),
        (["--host", "much"], "much is not a size"),
        (["--disk", "lots"], "lots is not a size"),
        (["--disk", "-1"], "-1 is not a size"),
        (["--compile", "--rival", "save_on_cpu"], "save_on_cpu cannot train a compiled model"),
        (["--devices", "9"], "--devices 9: out of range"),
        (["--rival", "cpu_offload"], "cpu_offload shards the model"),
        (["--jobs", "gpt-tiny:none"], "'none' is no number of steps"),
        (["--jobs", "gpt-tiny,"], "there is no workload "),
        (["--jobs", "gpt-tiny", "--devices", "17"], "--devices 17: out of range"),
        (["--jobs", "gpt-tiny", "--ratio", "2", "--ratio", "3"], "--ratio: jobs share cards"),
        (["--jobs", "gpt-tiny", "--rival", "lms"], "--rival and --jobs"),
        (["--jobs", "gpt-tiny", "--turn-seconds", "0"], "--turn-seconds 0: a turn takes"),
        (["--release", "1.0"], "1.0"),
    ],
)
def test_bad_options(lms, capsys, arguments, said):
    assert lms(*arguments) == 2
    assert said in capsys.readouterr().err


@pytest.fixture
def chosen(monkeypatch, lms):
    """What a command line chooses, and the command that is shown for it."""

    def choose(*arguments):
        seen = []
        monkeypatch.setattr(
            bench,
            "execute",
            lambda args: seen.append((bench.choices(args), bench.command_of(args))) or 0,
        )
        assert lms(*arguments) == 0
        return seen[0]

    return choose


def test_everything_by_default(chosen):
    (subjects, rivals, ratios), command = chosen()
    assert ratios == [0.9, 1.25, 1.5, 2, 3.7, 8]
    assert {"ideal", "lms", "original", "save_on_cpu", "checkpoint"} < set(rivals)
    assert len(subjects) == 9 and subjects[0].batch == 64
    assert "gpt-tiny" not in {subject.workload for subject in subjects}
    assert command == "./scripts/lms bench"


def test_a_choice_is_shown_as_the_command_that_made_it(chosen):
    arguments = ["--workload", "lstm@7", "--rival", "lms", "--ratio", "3.7", "--ratio", "2"]
    arguments += ["--card", "V100-PCIe-32GB", "--card", "A100-SXM-40GB", "--iterations", "5"]
    (subjects, rivals, ratios), command = chosen(*arguments, "--parallel", "1")
    assert (rivals, ratios) == (["lms"], [2, 3.7])
    assert [(s.workload, s.batch, s.card) for s in subjects] == [
        ("lstm", 7, "V100-PCIe-32GB"),
        ("lstm", 7, "A100-SXM-40GB"),
    ]
    assert command == "./scripts/lms bench " + " ".join(arguments)


def test_compiled_models_are_subjects_of_their_own(chosen, capsys):
    (subjects, rivals, _), command = chosen("--workload", "gpt-tiny", "--compile")
    assert {"ideal", "lms", "checkpoint"} < set(rivals) and "save_on_cpu" not in rivals
    assert "save_on_cpu is left out" in capsys.readouterr().err
    (compiled,) = subjects
    assert compiled.title == "gpt-tiny, batch 8, A100-SXM-40GB, compiled"
    assert command == "./scripts/lms bench --workload gpt-tiny --compile"
    eager = bench_cells.subject("gpt-tiny", compiled.card)
    assert eager != compiled and eager.slug != compiled.slug


def test_a_host_and_its_disk_are_part_of_the_subject(chosen):
    arguments = ["--workload", "gpt-tiny", "--host", "1.5G", "--disk", "800G"]
    (subjects, _, _), command = chosen(*arguments)
    (limited,) = subjects
    assert (limited.host, limited.disk) == (3 << 29, 800 << 30)
    assert limited.title == "gpt-tiny, batch 8, A100-SXM-40GB, 1.5 GiB of host memory and a disk"
    assert command == "./scripts/lms bench " + " ".join(arguments)
    usual = bench_cells.subject("gpt-tiny", limited.card)
    assert (usual.host, usual.disk) == (512 << 30, 0)
    assert usual != limited and usual.slug != limited.slug


def test_sharded_models_are_subjects_of_their_own(chosen):
    arguments = ("--workload", "gpt-tiny", "--rival", "cpu_offload", "--devices", "2")
    ((sharded,), rivals, _), command = chosen(*arguments)
    assert (sharded.devices, rivals) == (2, ["cpu_offload"])
    assert sharded.title == "gpt-tiny, batch 8, A100-SXM-40GB, FSDP2 over 2"
    assert command == "./scripts/lms bench " + " ".join(arguments)
    whole = bench_cells.subject("gpt-tiny", sharded.card)
    assert whole != sharded and whole.slug != sharded.slug


def test_the_list_names_everything(lms, capsys):
    assert lms("--list") == 0
    shown = capsys.readouterr().out
    for entry in (*catalogue.WORKLOADS, *catalogue.RIVALS):
        assert entry.name in shown
    assert "GH200-96GB" in shown


def test_capacities_are_the_need_over_the_ratio():
    import made_up

    best = made_up.fine(10)
    cells = bench_cells.rivals(made_up.SUBJECT, ["ideal", "lms"], [0.9, 4], best)
    assert [(cell.rival, cell.ratio) for cell in cells] == [("lms", 0.9), ("lms", 4)]
    assert [cell.capacity * cell.ratio / best.need for cell in cells] == pytest.approx([1, 1], 1e-3)
    assert all(cell.capacity % (2 << 20) == 0 and cell.iterations == 6 for cell in cells)
