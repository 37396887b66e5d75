"""The features of tests/programs/features/, read without importing torch."""

from __future__ import annotations

import ast
from dataclasses import dataclass

import pytest

from support.device import PROGRAMS, Device
from support.programs import Programs
from support.triton import HAS_HEADERS, WHY

FOLDER = PROGRAMS / "features"


@dataclass(frozen=True)
class Listed:
    """A feature as it is declared; see features.common.Section."""

    name: str  # "autograd.double_backward"
    section: str
    title: str
    ratio: float = 2.0
    gpu: str | None = None
    triton: bool = False
    graphs: bool = False

    @property
    def needs_libraries(self) -> bool:
        """Whether it imports what scripts/locks/libraries.lock lists."""
        return self.name.startswith("libraries.")


def listed() -> list[Listed]:
    """All, in the order of their files."""
    return [
        feature
        for path in sorted(FOLDER.glob("*.py"))
        for feature in _of_module(path.stem, ast.parse(path.read_text(encoding="utf-8")))
    ]


def parameters(features: list[Listed]) -> list[object]:
    """For `pytest.mark.parametrize`; each has its line in docs/compatibility.md."""
    return [
        pytest.param(
            feature,
            id=feature.name,
            marks=pytest.mark.compatibility(feature.section, feature.title, "works"),
        )
        for feature in features
    ]


def compare(device: Device, programs: Programs, feature: Listed) -> None:
    """Runs a feature in all modes, or skips the test if the device cannot run it."""
    if feature.gpu and device.simulated:
        pytest.skip(f"needs a GPU: {feature.gpu}")
    if feature.triton and not HAS_HEADERS:
        pytest.skip(WHY)
    programs.compare(feature.name, feature.ratio)


def _of_module(module: str, tree: ast.Module) -> list[Listed]:
    section, found = "", []
    for node in tree.body:
        if isinstance(node, ast.Assign) and "SECTION" in map(ast.unparse, node.targets):
            (section,) = _arguments(node.value)[0]
        elif isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if ast.unparse(decorator).startswith("feature("):
                    words, options = _arguments(decorator)
                    found.append(Listed(f"{module}.{node.name}", section, *words, **options))
    return found


def _arguments(call: ast.expr) -> tuple[list[str], dict[str, object]]:
    assert isinstance(call, ast.Call)
    words = [ast.literal_eval(argument) for argument in call.args]
    return words, {option.arg or "": ast.literal_eval(option.value) for option in call.keywords}
