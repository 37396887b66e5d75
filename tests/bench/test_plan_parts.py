"""What `lms plan` decides, computes and shows, without running a script."""

from __future__ import annotations

import pytest
from lms_cli import cli
from lms_cli.bench.cells import UNLIMITED, Outcome
from lms_cli.errors import PlanError
from lms_cli.plan import planning, showing
from lms_cli.plan.planning import GIB, Card
from lms_cli.plan.running import Program, Run
from lms_cli.verbs import run
from lms_plan import contents

MS = 1_000_000  # nanoseconds
CARD = Card("A100-SXM-40GB", 30 * GIB)
PROGRAM = Program(("-m", "train"), None, None)


def outcome(ms, need=40, allocated=35, convolutions=False, again=0.0, link=0.0, host=0.0):
    """A step of some milliseconds, parts of which go elsewhere; memory in GiB."""
    step = ms * MS
    return Outcome(
        "ok",
        "",
        {
            "step_ns": float(step),
            "peak_reserved_bytes": need * GIB,
            "peak_allocated_bytes": allocated * GIB,
            "convolutions": convolutions,
            "deterministic": False,
            "busy_ns": {"compute": step * (1 - link - host), "again": step * again},
            "waiting_ns": step * link,
            "h2d_bytes": 2e9,
            "d2h_bytes": 1e9,
            "peak_page_locked_bytes": 12 * GIB,
            "lms_step": {"lms.recompute.bytes": 5e9},
            "contents": dict.fromkeys(showing.CONTENTS, 7 * GIB),
            "unsimulated": [],
        },
    )


NO_MEMORY = Outcome("oom", "no memory", {})


class FakeRunner:
    """Gives outcomes that were made up, and says what was asked for."""

    def __init__(self, **outcomes):
        self.outcomes, self.asked, self.program = outcomes, [], PROGRAM

    def run(self, run):
        name = "limited" if run.rival == "ideal" and run.capacity != UNLIMITED else run.rival
        self.asked.append(name)
        return self.outcomes[name]

    def log(self, run):
        return f"{run.slug}.log"

    def last_lines(self, run):
        return "  the end"


@pytest.mark.parametrize(
    ("outcomes", "asked", "fits"),
    [
        ({"ideal": outcome(10, need=30, allocated=30)}, ["ideal"], True),
        ({"ideal": outcome(10), "lms": outcome(12)}, ["ideal", "lms"], False),
        (
            {"ideal": outcome(10, allocated=29), "limited": outcome(10)},
            ["ideal", "limited"],
            True,
        ),
        (
            {"ideal": outcome(10, allocated=29), "limited": NO_MEMORY, "lms": outcome(12)},
            ["ideal", "limited", "lms"],
            False,
        ),
        (
            {
                "ideal": outcome(10, convolutions=True),
                "lms": outcome(12),
                "lms_deterministic": outcome(11),
            },
            ["ideal", "lms", "lms_deterministic"],
            False,
        ),
    ],
)
def test_only_what_is_asked_is_run(outcomes, asked, fits):
    runner = FakeRunner(**outcomes)
    assert planning.on(runner, CARD).fits == fits
    assert runner.asked == asked


def test_a_script_that_fails_is_an_error():
    runner = FakeRunner(ideal=Outcome("failed", "ValueError: no", {}))
    with pytest.raises(PlanError, match=r"train failed: ValueError: no\n  the end\n.*limit\.log"):
        planning.on(runner, CARD)


@pytest.mark.parametrize(
    ("lms", "deterministic", "gains"),
    [
        (outcome(100), None, False),
        (outcome(100), outcome(99), False),
        (outcome(100), outcome(97), True),
        (outcome(100), outcome(103), True),
        (outcome(100), NO_MEMORY, False),
        (NO_MEMORY, outcome(100), True),
    ],
)
def test_an_alternative_is_shown_if_it_changes_the_step(lms, deterministic, gains):
    assert planning.CardPlan(CARD, outcome(90), None, lms, deterministic).gains == gains


@pytest.mark.parametrize(
    ("shares", "bound"),
    [({}, "compute"), ({"link": 0.6}, "the link"), ({"host": 0.6, "link": 0.1}, "the host")],
)
def test_what_bounds_a_step(shares, bound):
    found = showing.shares(outcome(100, again=0.1, **shares))
    assert found.bound == bound
    assert found.computing + found.making + found.link + found.host == pytest.approx(1)
    assert found.making == pytest.approx(0.1)


def test_tables_and_json(capsys, tmp_path):
    fitting = planning.CardPlan(Card("H100-SXM-80GB", 76 * GIB), outcome(5))
    short = planning.CardPlan(CARD, outcome(10), None, outcome(20, link=0.6), outcome(16))
    failing = planning.CardPlan(Card("RTX-4090-24GB", GIB), outcome(20), None, NO_MEMORY)
    same = planning.CardPlan(CARD, outcome(10), None, outcome(20), outcome(20))
    plans = [fitting, short, failing, same]
    showing.show(PROGRAM, plans, tmp_path)
    shown = capsys.readouterr().out
    rows = {
        cells[0].strip(): [cell.strip() for cell in cells[1:]]
        for line in reversed(shown.splitlines())
        if len(cells := line.strip("│┃").replace("┃", "│").split("│")) > 1
    }
    assert rows["together"] == ["40.0 GiB"]
    assert rows[showing.UNUSED] == ["5.0 GiB"]
    assert rows["fits without LMS"] == ["yes", "no, 1.33x", "no, 40.00x", "no, 1.33x"]
    assert rows["with LMS"] == ["-", "runs", "out of memory", "runs"]
    assert rows["speed, of memory without end"] == ["-", "50.0 %", "-", "50.0 %"]
    assert rows["made again"] == ["-", "5.00 GB", "-", "5.00 GB"]
    assert rows["with cudnn.deterministic, too"] == ["-", "runs", "-", "-"]
    assert rows["bound by"] == ["compute", "the link", "-", "compute"]
    assert "RTX-4090-24GB with LMS: no memory" in shown
    assert f"is in {tmp_path}; its numbers mean nothing" in shown

    found = showing.report(PROGRAM, plans, tmp_path)
    assert found["need_bytes"] == sum(found["contents_bytes"].values()) == 40 * GIB
    assert [card["fits"] for card in found["cards"]] == [True, False, False, False]
    assert found["cards"][1]["lms"]["of_ideal"] == 0.5
    assert found["cards"][1]["lms_deterministic"]["step_seconds"] == pytest.approx(0.016)
    assert found["cards"][2]["lms"] == {"status": "oom", "reason": "no memory"}


def test_runs_have_files_of_their_own():
    runs = [Run("C", "ideal"), Run("C", "ideal", 1), Run("C", "lms", 1), Run("D", "lms", 1)]
    assert len({one.slug for one in runs}) == 4


# --- what is in memory at the peak ---


def event(action, address, size=1):
    return {"action": action, "addr": address, "size": size}


def test_what_is_in_memory_at_the_peak():
    """Named before event 6: 1 is a parameter, 2 a gradient by then, 3 optimizer state."""
    events = [
        event("segment_alloc", 0, 1000),
        event("alloc", 2, 100),  # an activation, where later a gradient is
        event("alloc", 5, 50),  # the peak: 10 + 30 + 40 and 100 + 50
        event("free_requested", 2, 100),
        event("free_completed", 2, 100),
        event("alloc", 2, 20),
        event("free_completed", 5, 50),
        event("free_completed", 2, 20),
    ]
    alive = {1: 10, 3: 30, 4: 40}
    names = {1: "parameters", 2: "gradients", 3: "optimizer_state"}
    expected = {
        "parameters": 10,
        "gradients": 0,
        "optimizer_state": 30,
        "kept": 40,
        "activations": 150,
    }
    assert contents.sums(events, alive, names, 6) == expected
    # With a larger gradient the peak is when that is there, and the rest of the activations.
    events[5] = event("alloc", 2, 200)
    events[7] = event("free_completed", 2, 200)
    assert contents.sums(events, alive, names, 6) == expected | {
        "gradients": 200,
        "activations": 50,
    }


# --- the command line ---


@pytest.fixture
def lms(monkeypatch):
    monkeypatch.setattr(cli.toolbox, "ensure", lambda arguments: None)
    return lambda *arguments: cli.main(["plan", *arguments])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--card", "B1000"], "there is no card B1000\n  The simulated device knows V100"),
        (["--memory", "much"], "much is not a size"),
        (["--memory", "0"], "a device without memory"),
        (["--host-memory", "0"], "--host-memory 0: LMS cannot do without"),
        (["--parallel", "0"], "--parallel 0: at least one"),
        ([], "there is no program nowhere.py"),
    ],
)
def test_bad_options(lms, capsys, arguments, said):
    assert lms(*arguments, "nowhere.py") == 2
    assert said in capsys.readouterr().err


def test_a_module_behind_a_flag():
    words = ["plan", "--json", "--card", "H200-141GB", "-m", "train", "--json", "-m"]
    assert run.protect(words) == [*words[:4], "--", *words[4:]]
    assert run.protect(["plan", "--json", "train.py", "-m"]) == ["plan", "--json", "train.py", "-m"]
