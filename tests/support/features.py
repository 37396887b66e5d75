"""The features of tests/programs/features/, read without importing torch."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from support.device import PROGRAMS

FOLDER = PROGRAMS / "features"


@dataclass(frozen=True)
class Listed:
    """A feature as it is declared; see features.common.Section."""

    name: str  # "autograd.double_backward"
    section: str
    title: str
    ratio: float = 2.0
    gpu: str | None = None


def listed() -> list[Listed]:
    """All, in the order of their files."""
    return [
        feature
        for path in sorted(FOLDER.glob("*.py"))
        for feature in _of_module(path.stem, ast.parse(path.read_text(encoding="utf-8")))
    ]


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
