"""`lms plan`: scripts on the simulated device, in virtual time."""

from __future__ import annotations

import argparse
import json
import sys

import pytest
from lms_bench import catalogue
from lms_cli import simulate
from lms_cli.bench import cells
from lms_cli.errors import PlanError
from lms_cli.verbs import plan
from support.triton import needs_headers

CARD = "A100-SXM-40GB"
GPT_TINY = """
import sys
from lms_bench import catalogue
training = catalogue.named("workload", catalogue.WORKLOADS, "gpt-tiny").build(8, "cuda")
while True:
    training.step()
"""
# Everything that a script does beside training, and that must not be done with meaningless numbers.
BUSY = """
import os, torch
from torch import nn
from torch.utils.data import DataLoader

model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)).cuda()
model(torch.zeros(1, 3, 32, 32, device="cuda"))
optimizer = torch.optim.AdamW(model.parameters())
other = torch.optim.SGD([nn.Parameter(torch.zeros(8, device="cuda"))])
torch.cuda.set_enabled_lms(True)
torch.cuda.set_limit_lms(1)
data = DataLoader(torch.randn(400, 3, 32, 32), batch_size=8, num_workers=1)
for step, images in enumerate(data):
    try:
        scaler = torch.amp.GradScaler("cuda")
        with torch.autocast("cuda", torch.float16):
            loss = model(images.cuda(non_blocking=True)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        other.step()
        optimizer.zero_grad()
        print("step", step, "loss", loss.item(), flush=True)
        torch.save(model.state_dict(), "best.pt")
        torch.save(model.state_dict(), "last.pt.part")
        os.replace("last.pt.part", "last.pt")
    except Exception as error:
        print("caught", error)
"""


@pytest.fixture
def lms_plan(device, tmp_path, monkeypatch, capsys):
    """Plans for a script of some text on one card; returns what `--json` prints."""
    if not device.simulated:
        pytest.skip("scripts are planned in virtual time")
    monkeypatch.setattr(simulate, "build", lambda environment: device.build)
    monkeypatch.setenv("LMS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(text, *options):
        (tmp_path / "script.py").write_text(text)
        parser = argparse.ArgumentParser()
        plan.configure_parser(parser.add_subparsers())
        words = ["plan", "--environment", sys.prefix, "--card", CARD, "--json", *options]
        assert plan.execute(parser.parse_args([*words, "script.py"])) == 0
        return json.loads(capsys.readouterr().out)

    return run


def run_cell(device, rival, capacity):
    """What `lms bench` measures."""
    return device.json(
        *(cells.PROGRAM, "--workload", "gpt-tiny", "--batch", "8", "--rival", rival),
        kernels="timed",
        card=CARD,
        driver_lock=True,
        capacity=capacity,
        env={"PYTORCH_LMS_HOST_LIMIT": str(cells.HOST_LIMIT), "PYTORCH_LMS_LIMIT": str(capacity)},
    )


def test_a_plan_says_what_the_benchmark_measures(device, lms_plan):
    ideal = run_cell(device, "ideal", cells.UNLIMITED)
    need = ideal["peak_reserved_bytes"]
    memory = need // 2 // cells.PIECE * cells.PIECE
    lms = run_cell(device, "lms", memory)
    found = lms_plan(GPT_TINY, "--memory", str(memory))
    assert found["need_bytes"] == need == sum(found["contents_bytes"].values())
    (card,) = found["cards"]
    assert (card["card"], card["memory_bytes"], card["fits"]) == (CARD, memory, False)
    assert card["ideal"]["step_seconds"] == pytest.approx(ideal["step_ns"] / 1e9, rel=0.01)
    assert card["lms"]["step_seconds"] == pytest.approx(lms["step_ns"] / 1e9, rel=0.05)
    assert card["lms"]["to_device_bytes"] == pytest.approx(lms["h2d_bytes"], rel=0.05)
    assert card["lms"]["host_bytes"] == pytest.approx(lms["peak_page_locked_bytes"], rel=0.05)
    assert card["lms_deterministic"] is None  # there is no convolution
    parameters = 4 * (1000 * 256 + 256 * 256 + 8 * 12 * 256 * 256)  # and few more
    assert found["contents_bytes"]["parameters"] == pytest.approx(parameters, rel=0.05)
    assert found["contents_bytes"]["optimizer state"] == pytest.approx(2 * parameters, rel=0.05)


def test_a_script_does_what_scripts_do(lms_plan, tmp_path):
    (tmp_path / "last.pt").write_text("what was learnt before")
    (card,) = lms_plan(BUSY, "--memory", "1G")["cards"]
    assert card["fits"] and card["lms"] is None
    assert 0 < card["ideal"]["step_seconds"] < 1
    assert (tmp_path / "last.pt").read_text() == "what was learnt before"
    assert {path.name for path in tmp_path.iterdir()} == {"script.py", "last.pt", "home"}
    (log,) = tmp_path.glob("home/plan/*/*.log")
    lines = log.read_text().splitlines()
    assert [line for line in lines if line.startswith("step")] == [
        f"step {step} loss 0.0" for step in range(catalogue.ITERATIONS - 1)
    ]
    assert sum("nothing is saved" in line for line in lines) == 1
    assert not any("caught" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import lost", "failed: ModuleNotFoundError: No module named 'lost'\n  Traceback"),
        ("raise SystemExit(3)", "failed: it ended with status 3"),
        ("import os; print('bye', flush=True); os._exit(3)", "ended with status 3 before"),
        ("import os; os.kill(os.getpid(), 9)", "was killed, as the system does where memory is"),
        (
            "import torch; torch.zeros(1 << 28, device='cuda')",
            "ended after 0 steps of an optimizer, and 6 are needed to time it, 24 with LMS. It has "
            "needed 1.00 GiB",
        ),
    ],
)
def test_a_script_that_cannot_be_planned(lms_plan, tmp_path, text, said):
    with pytest.raises(PlanError) as raised:
        lms_plan(text)
    message = str(raised.value)
    assert message.startswith("script.py ") and said in message
    assert "run_script.py" not in message
    (log,) = tmp_path.glob("home/plan/*/*.log")
    assert str(log) in message


TRAINING = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range({steps}):
    model(torch.randn(32768, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("steps", "options", "said"),
    [
        (12, (), f"{CARD} with LMS: it ended after 12 steps; 24 are needed"),
        (30, ("--host-memory", "64M"), "host memory for paged-out storages is spent"),
    ],
)
def test_lms_cannot_be_timed(lms_plan, steps, options, said):
    found = lms_plan(TRAINING.format(steps=steps), "--memory", "600M", *options)
    (card,) = found["cards"]
    assert card["ideal"]["status"] == "ok" and card["lms"]["status"] != "ok"
    (note,) = found["notes"]
    assert said in note


COMPILED = """
import torch
from torch import nn
layers = nn.Linear(1024, 1024), nn.GELU(), nn.Dropout(), nn.LayerNorm(1024)
model = nn.Sequential(*layers).cuda()
optimizer = torch.optim.SGD(model.parameters())
forward = {compile}(model)
while True:
    with torch.autocast("cuda", torch.bfloat16):
        loss = forward(torch.randn(32768, 1024, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@needs_headers
def test_a_compiled_model(lms_plan):
    (eager,) = lms_plan(COMPILED.format(compile=""), "--memory", "30G")["cards"]
    (compiled,) = lms_plan(COMPILED.format(compile="torch.compile"), "--memory", "400M")["cards"]
    assert 0.5 < compiled["ideal"]["step_seconds"] / eager["ideal"]["step_seconds"] < 0.9
    assert (compiled["fits"], compiled["lms"]["status"]) == (False, "ok")
    assert compiled["lms"]["step_seconds"] > compiled["ideal"]["step_seconds"]
