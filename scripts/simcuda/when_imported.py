"""Changes of modules that wait until a program imports them."""

from __future__ import annotations

import importlib.abc
import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any


class WhenImported(importlib.abc.MetaPathFinder):
    """Changes modules as soon as they are imported."""

    def __init__(self, changes: dict[str, Callable[[ModuleType], None]]) -> None:
        self.changes = changes

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        """The module's, which changes it when it has run; None if it is not to be changed."""
        change = self.changes.pop(name, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
