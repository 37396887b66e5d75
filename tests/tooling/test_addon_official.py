"""The small wheel beside the official torch, on the simulated device."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import official_torch
import pytest
from lms_cli import paths, releases
from lms_cli.addon import small_wheel
from support.device import TESTS, Device
from support.programs import programs_on

RELEASE = releases.default(paths.PATCHES)


@dataclass(frozen=True)
class Beside:
    """A folder with the official torch and the small wheel, for programs on a device."""

    device: Device
    folder: Path

    @property
    def variables(self) -> dict[str, str]:
        return {"PYTHONPATH": f"{self.folder}:{TESTS}"}

    def json(self, code: str, **variables: str) -> Any:
        return self.device.json("-c", code, env={**self.variables, **variables})


def beside_official(device: Device, folder: Path, *wheel: str | Path) -> Beside:
    """The official torch, with what pip installs beside it."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    official_torch.make(folder, Path(spec.origin).parents[1], RELEASE)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
    subprocess.run([*pip, *wheel], check=True)
    return Beside(device, folder)


@pytest.fixture(scope="module")
def beside(device: Device, tmp_path_factory: pytest.TempPathFactory) -> Beside:
    folder = tmp_path_factory.mktemp("beside")
    command = [sys.executable, paths.SCRIPT, "build", "--addon", RELEASE.version]
    built = subprocess.run([*command, "--out", folder], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return beside_official(device, folder, built.stdout.strip())


def compare(beside: Beside) -> None:
    run = {"model": "gpt", "optimizer": "adamw_fused", "option": "plain", "steps": 2}
    with programs_on(beside.device, env=beside.variables) as programs:
        programs.compare("train", 4.0, run)
        programs.compare("custom_function", 3.0)


def test_programs_give_the_same_bits(beside: Beside) -> None:
    compare(beside)


def test_programs_give_the_same_bits_with_the_wheel_of_a_clone(
    device: Device, tmp_path: Path
) -> None:
    wheels = ("--no-index", "--find-links", paths.INDEX, small_wheel.PACKAGE)
    compare(beside_official(device, tmp_path, *wheels))


SURFACE = """
import json, torch
from torch.cuda import memory_summary
torch.cuda.set_enabled_lms(True)
x = torch.ones(1 << 20, device="cuda")
torch.cuda.reclaim_inactive()
nested = torch.cuda.memory_stats_as_nested_dict()
before = torch.cuda.memory_stats()["lms.paged_out_bytes.peak"]
resident = torch.cuda.lms.is_resident(x)
sum = x.sum().item()
torch.cuda.reset_peak_memory_stats()
print(json.dumps({
    "torch": [torch.__version__, torch.__file__],
    "exported": sorted(torch.cuda.__all__),
    "callable": all(hasattr(torch.cuda, name) for name in torch.cuda.__all__),
    "paged": [resident, sum, before, torch.cuda.memory_stats()["lms.paged_out_bytes.peak"]],
    "nested": nested["lms"]["page_out"]["bytes"],
    "summary": "LMS reclaimed" in memory_summary(),
}))
"""


def test_it_is_what_the_patches_make(beside: Beside) -> None:
    found = beside.json(SURFACE)
    official = f"{RELEASE.version}+cu{RELEASE.cuda.replace('.', '')}"
    assert found["torch"] == [official, str(beside.folder / "torch" / "__init__.py")]
    assert found["exported"] == sorted(exports_of_the_patched_module())
    assert found["callable"]
    assert found["paged"] == [False, 1 << 20, 4 << 20, 0]
    assert found["nested"] == 4 << 20
    assert found["summary"]


def exports_of_the_patched_module() -> list[str]:
    with small_wheel.texts(RELEASE) as official:
        text = small_wheel.part(RELEASE, official).applied.changed[small_wheel.EXPORTS]
    (names,) = (
        ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return names


def test_the_environment_turns_it_on(beside: Beside) -> None:
    code = "import torch; torch.ones(1).cuda(); print(int(torch.cuda.get_enabled_lms()))"
    assert beside.json(code, PYTORCH_LMS="1") == 1


def test_dynamo_does_not_trace_it(beside: Beside) -> None:
    """A step with a backward pass in it gives one graph, as it does without LMS."""
    code = """
import json, torch
from torch._dynamo.utils import counters
weight = torch.ones(64, 64, device="cuda", requires_grad=True)
def step(x):
    (weight @ x).relu().sum().backward()
    return weight.grad.data_ptr() != 0
def graphs():
    torch._dynamo.reset()
    counters.clear()
    torch.compile(step, backend="eager")(torch.ones(64, device="cuda"))
    return counters["stats"]["unique_graphs"]
off = graphs()
torch.cuda.set_enabled_lms(True)
print(json.dumps([off, graphs()]))
"""
    off, on = beside.json(code)
    assert off == on
