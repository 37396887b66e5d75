"""Features of PyTorch, each a small program. docs/compatibility.md is made of how they end."""

from __future__ import annotations

from importlib import import_module

from features.common import Feature


def find(name: str) -> Feature:
    """The feature of a name such as "autograd.double_backward"."""
    module, _, feature = name.partition(".")
    return import_module(f"features.{module}").SECTION.features[feature]
