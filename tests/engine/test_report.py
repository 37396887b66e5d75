"""`torch.cuda.lms.report`: what it writes of a step, and that it changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lms_cli import paths
from lms_cli.environments import toolbox
from reports import CARD, TRAINING, done, events, on, run, took
from support import browser
from support.device import Device

LIMITS = {"PYTORCH_LMS_HOST_LIMIT": "8G"}


@pytest.fixture(scope="session")
def bokeh() -> str:
    """A folder to import Bokeh from."""
    python = toolbox.make(paths.LOCKS / "timeline.lock", "what draws timelines")
    return str(next(python.parents[1].glob("lib/python3*/site-packages")))


# --- what is told ---


@pytest.fixture(scope="module")
def trained(
    device: Device, bokeh: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, dict[str, Any]]:
    """A report of a step for Perfetto, the page of the next, and what else is known of the step."""
    if not device.simulated:
        pytest.skip("needs the timed mode of the simulated device")
    folder = tmp_path_factory.mktemp("trained")
    code = f"""{TRAINING}
import json
sys.path.append(sys.argv[3])
model, step = train(1024, 8192)
for _ in range(20):
    step()
torch.cuda.synchronize()
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
before = torch.cuda.lms.stats()
with torch.cuda.lms.report(sys.argv[1], model=model):
    begin.record()
    step()
    end.record()
torch.cuda.synchronize()
after = torch.cuda.lms.stats()
with torch.cuda.lms.report(sys.argv[2], model=model):
    step()
changes = {{name: after[name] - before[name] for name in after}}
print(json.dumps({{"ms": begin.elapsed_time(end), **changes}}))
"""
    written = folder / "step.json", folder / "step.html"
    text = done(device, code, *written, bokeh, env=LIMITS, **CARD)
    return *written, json.loads(text.splitlines()[-1])


def test_a_step_as_the_statistics_have_it(trained: tuple[Path, Path, dict[str, Any]]) -> None:
    path, _, stats = trained
    for lane, name in (("host to device", "page_in"), ("device to host", "page_out")):
        assert len(on(lane, path)) == stats[f"lms.{name}.copies"] > 0
        assert took(lane, path) == pytest.approx(stats[f"lms.{name}.us"] / 1000, rel=0.01)
    again = on("made again", path)
    assert len(again) == stats["lms.recompute.count"] > 0
    ahead = [event for event in on("host to device", path) if event["args"]["kind"] == "in ahead"]
    assert len(ahead) == stats["lms.page_in.ahead.copies"]
    assert stats["reclaimed"] > len(on("dropped", path)) >= 1
    # The lanes of the compute stream leave no time out.
    lanes = sum(took(lane, path) for lane in ("computes", "made again", "stands still"))
    assert lanes == pytest.approx(stats["ms"], rel=0.02)


def test_a_step_as_a_replay_has_it(
    device: Device, trained: tuple[Path, Path, dict[str, Any]], tmp_path: Path
) -> None:
    """The same lanes, and about the same times: see docs/traces.md for how near replays are."""
    from _lms_timeline import named, recorded
    from _lms_timeline.story import Story
    from lms_cli import simulate
    from lms_cli.trace import reader, replaying

    path, _, stats = trained
    trace = tmp_path / "trace.jsonl"
    code = f"{TRAINING}\nmodel, step = train(1024, 8192)\nfor _ in range(20):\n    step()\n"
    done(device, code, env={"PYTORCH_LMS_TRACE": str(trace)}, **(CARD | {"capacity": "40G"}))
    machine = replaying.machine_of(simulate.card(CARD["card"]) | {"memory": 1940 << 20})
    _, row = replaying.replay_step(reader.read(trace), machine, "planned", None, recompute=True)
    step, names = recorded.parse(row), named.read(trace)
    assert step.ns / 1e6 == pytest.approx(stats["ms"], rel=0.1)
    told = Story(step, names)
    assert {event["lane"] for event in events(path)} <= set(told.lanes)
    computing = sum(event.end - event.begin for event in told.events() if event.lane == "computes")
    assert computing / 1e6 == pytest.approx(took("computes", path), rel=0.02)


def test_names(trained: tuple[Path, Path, dict[str, Any]]) -> None:
    path, _, _ = trained
    names = {event["name"] for event in on("computes", path)}
    assert {"aten::addmm in 0.up", "aten::native_layer_norm in 7.norm"} <= names
    assert "aten::_fused_adamw_" in names  # after the forward pass no module is told
    whys = "".join(event["args"]["why"] for event in on("computes", path))
    assert "3.down.weight (16.0 MiB)" in whys and "3.down.weight.grad (16.0 MiB)" in whys


def test_the_page(trained: tuple[Path, Path, dict[str, Any]]) -> None:
    _, page, _ = trained
    chromium = browser.find()
    shown = "events.kinds.map(kind => model(kind.source).data.count).flat().length"
    fetched = "performance.getEntriesByType('resource').length"
    text = "document.body.innerText"
    visit = chromium.visit(page, *({"run": script} for script in (shown, fetched, text)))
    assert visit.errors == []
    assert visit.results[0] > 50 and visit.results[1] == 0
    for words in ("to the device", "Storages that cost most", "Longest stalls", "in 0.up"):
        assert words in visit.results[2]
    assert page.stat().st_size < 3e6


def test_nothing_moved(device: Device, bokeh: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code = """
import sys, torch
sys.path.append(sys.argv[2])
x = torch.ones(1000, device="cuda")
with torch.cuda.lms.report(sys.argv[1]):
    x.add_(1)
"""
    done(device, code, page, bokeh)
    assert "nothing: everything fitted" in page.read_text()
    assert list(tmp_path.iterdir()) == [page]


def test_several_streams(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "streams.json"
    code = """
import sys, torch
x = torch.ones(1000, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.lms.report(sys.argv[1]):
    x.add_(1)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x.mul(2)
    torch.cuda.current_stream().wait_stream(side)
    y.sub_(1)
"""
    done(device, code, path)
    lanes = [(event["name"], event["lane"]) for event in events(path) if "aten" in event["name"]]
    computed = [pair for pair in lanes if pair[1].startswith("computes")]
    assert computed == [
        ("aten::add_.Tensor", "computes"),
        ("aten::mul.Tensor", "computes, stream 2"),
        ("aten::sub_.Tensor", "computes"),
    ]


def test_a_stream_that_is_behind(device: Device, tmp_path: Path) -> None:
    """The report begins when the current stream gets there; another may be done long before."""
    path = tmp_path / "behind.json"
    code = """
import sys, torch
a, x = torch.ones(2000, 2000, device="cuda"), torch.ones(1000, device="cuda")
side = torch.cuda.Stream()
torch.cuda.synchronize()
for _ in range(6):
    b = a @ a
with torch.cuda.lms.report(sys.argv[1]):
    with torch.cuda.stream(side):
        for _ in range(1200):
            x.add_(1)
    b.mul_(1)
"""
    done(device, code, path, kernels="async", capacity="256M")
    lanes = [event["lane"] for event in events(path) if event["cat"] == "lms"]
    assert lanes.count("computes") == 1 and lanes.count("computes, stream 2") == 1200


def test_another_device(device: Device, tmp_path: Path) -> None:
    if device.count < 2:
        pytest.skip("needs two devices")
    path = tmp_path / "second.json"
    code = """
import sys, torch
a, b = (torch.ones(1000, device=f"cuda:{i}") for i in range(2))
with torch.cuda.lms.report(sys.argv[1], device=1):
    a.add_(1)
    b.mul_(1)
"""
    done(device, code, path, devices=2)
    assert [event["name"] for event in on("computes", path)] == ["aten::mul_.Tensor"]


# --- that nothing else changes ---

UNCHANGED = f"""{TRAINING}
import contextlib, json
model, step = train(128, 512, 4)
losses = []
for number in range(12):
    path = f"{{sys.argv[1]}}/{{number}}.json"
    is_told = sys.argv[2] == "told" and number > 5
    with torch.cuda.lms.report(path, model=model) if is_told else contextlib.nullcontext():
        losses.append(step().item())
print(json.dumps([losses, [p.double().sum().item() for p in model.parameters()],
                  torch.cuda.lms.stats()["reclaimed"]]))
"""


def test_the_same_bits(device: Device, tmp_path: Path) -> None:
    told, untold = (
        json.loads(done(device, UNCHANGED, tmp_path, word, capacity="16M").splitlines()[-1])
        for word in ("told", "untold")
    )
    assert told[:2] == untold[:2]
    assert told[2] > 0
    written = sorted(tmp_path.iterdir())
    assert len(written) == 6 and all(on("computes", path) for path in written)


def test_the_same_decisions(device: Device, tmp_path: Path) -> None:
    """In virtual time, which is the same in each run but for what the events themselves take."""
    if not device.simulated:
        pytest.skip("needs the timed mode of the simulated device")
    code = f"""{TRAINING}
import contextlib, json
model, step = train(1024, 8192)
for _ in range(20):
    step()
torch.cuda.synchronize()
is_told = sys.argv[2] == "told"
with torch.cuda.lms.report(sys.argv[1]) if is_told else contextlib.nullcontext():
    step()
torch.cuda.synchronize()
names = ("lms.page_in", "lms.page_out", "lms.recompute")
print(json.dumps([torch.cuda.lms.stats()[f"{{name}}.bytes"] for name in names]))
"""
    told, untold = (
        json.loads(done(device, code, tmp_path / "out.json", word, env=LIMITS, **CARD))
        for word in ("told", "untold")
    )
    assert told == pytest.approx(untold, rel=0.01)


def test_lists_are_not_cut_for_it(device: Device, tmp_path: Path) -> None:
    """As they are for a trace, which may be replayed with less memory."""
    if not device.simulated:
        pytest.skip("needs the timed mode of the simulated device")
    path = tmp_path / "list.json"
    code = """
import sys, torch
tensors = [torch.empty(200 << 20, dtype=torch.int8, device="cuda") for _ in range(2)]
with torch.cuda.lms.report(sys.argv[1]):
    torch._foreach_zero_(tensors)
"""
    done(device, code, path, **(CARD | {"capacity": "40G"}))
    assert [event["name"] for event in on("computes", path)] == ["aten::_foreach_zero_"]


def test_operators_cost_nothing_after_it(device: Device, tmp_path: Path) -> None:
    if not device.simulated:
        pytest.skip("needs the simulated device, which counts calls")
    code = """
import simcuda, sys, torch
x = torch.ones(1000, device="cuda")
def calls():
    before = simcuda.calls().get("cudaEventRecord", 0)
    x.add_(1)
    return simcuda.calls().get("cudaEventRecord", 0) - before
first = calls()
with torch.cuda.lms.report(sys.argv[1]):
    assert calls() == first + 2
assert calls() == first
"""
    done(device, code, tmp_path / "out.json")


# --- what can go wrong ---


def test_an_exception_in_the_body(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "failed.json"
    code = """
import sys, torch
x = torch.ones(1000, device="cuda")
model = torch.nn.Linear(3, 4).cuda()
try:
    with torch.cuda.lms.report(sys.argv[1], model=model):
        x.add_(1)
        model(x)
except RuntimeError as error:
    print(error)
assert not model._forward_hooks and not model._forward_pre_hooks
with torch.cuda.lms.report(sys.argv[1] + ".json"):
    x.mul_(1)
"""
    assert "cannot be multiplied" in done(device, code, path)
    names = [event["name"] for event in on("computes", path)]
    assert names[0] == "aten::add_.Tensor"
    assert [event["name"] for event in on("computes", Path(f"{path}.json"))] == [
        "aten::mul_.Tensor"
    ]


def test_a_page_that_cannot_be_written_hides_no_exception(device: Device, tmp_path: Path) -> None:
    code = """
import os, sys, torch
torch.cuda.init()
with torch.cuda.lms.report(sys.argv[1] + "/folder/out.json"):
    os.rmdir(sys.argv[1] + "/folder")
    raise KeyError("mine")
"""
    (tmp_path / "folder").mkdir()
    finished = run(device, code, tmp_path)
    assert finished.status == 1 and "KeyError: 'mine'" in finished.stderr.splitlines()[-1]
    assert "cannot be written" in finished.stderr


REFUSED = """
import sys, torch
x = torch.ones(1000, device="cuda")
try:
    with torch.cuda.lms.report(*{arguments}):
        print("ran")
except {error} as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ("('{folder}/page.pdf',)", "ValueError", "ends in .html or .json"),
        ("('{folder}/none/page.json',)", "OSError", "No such file or directory"),
        ("('{folder}/folder.json',)", "IsADirectoryError", "is a folder"),
        ("('{folder}/page.json', 7)", "ValueError", "there is no CUDA device 7"),
        ("('{folder}/page.html',)", "ImportError", "pip install bokeh"),
    ],
)
def test_what_is_refused(
    device: Device, tmp_path: Path, arguments: str, error: str, message: str
) -> None:
    """Before the body has run."""
    (tmp_path / "folder.json").mkdir()
    code = REFUSED.format(arguments=arguments.format(folder=tmp_path), error=error)
    text = done(device, code)
    assert message in text and "ran" not in text
    assert [path.name for path in tmp_path.iterdir()] == ["folder.json"]


def test_lms_is_off(device: Device, tmp_path: Path) -> None:
    code = REFUSED.format(arguments=(str(tmp_path / "page.json"),), error="RuntimeError")
    text = done(device, code, env={"PYTORCH_LMS": "0"})
    assert "Large Model Support is off" in text and "ran" not in text


def test_one_at_a_time(device: Device, tmp_path: Path) -> None:
    outer, inner = tmp_path / "outer.json", tmp_path / "inner.json"
    code = """
import sys, torch
x = torch.ones(1000, device="cuda")
with torch.cuda.lms.report(sys.argv[1]):
    try:
        with torch.cuda.lms.report(sys.argv[2]):
            print("ran")
    except RuntimeError as error:
        print(error)
    x.add_(1)
"""
    text = done(device, code, outer, inner)
    assert "is recording a report already" in text and "ran" not in text
    assert [event["name"] for event in on("computes", outer)] == ["aten::add_.Tensor"]
    assert not inner.exists()
    traced = {"PYTORCH_LMS_TRACE": str(tmp_path / "trace.jsonl")}
    code = REFUSED.format(arguments=(str(inner),), error="RuntimeError")
    assert "PYTORCH_LMS_TRACE" in done(device, code, env=traced)


def test_beside_a_thread_that_works(device: Device, tmp_path: Path) -> None:
    """Reports begin and end in the middle of its operators and copies."""
    code = """
import sys, threading, torch
torch.cuda.set_enabled_lms(True)
is_over = threading.Event()
def work():
    tensors = [torch.full((1 << 20,), 0.0, device="cuda") for _ in range(24)]
    while not is_over.is_set():
        for tensor in tensors:
            tensor.add_(1)
        tensors[0] = torch.full((1 << 20,), 0.0, device="cuda")
worker = threading.Thread(target=work)
worker.start()
x = torch.ones(1000, device="cuda")
for number in range(20):
    with torch.cuda.lms.report(f"{sys.argv[1]}/{number}.json"):
        for _ in range(50):
            x.add_(1)
is_over.set()
worker.join()
assert torch.cuda.lms.stats()["reclaimed"] > 0
"""
    done(device, code, tmp_path, kernels="async")
    written = sorted(tmp_path.iterdir())
    assert len(written) == 20
    for path in written:
        computed = on("computes", path)
        assert len(computed) >= 50 and all(event["dur"] >= 0 for event in computed)


def test_a_program_that_forks(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "fork.json"
    code = """
import os, sys, torch
x = torch.ones(1000, device="cuda")
with torch.cuda.lms.report(sys.argv[1]):
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        x.add_(1)
if child:
    print(os.path.exists(sys.argv[1]))
else:
    assert not os.path.exists(sys.argv[1])
"""
    assert done(device, code, path).split() == ["True"]
