"""Keeping a script, whose numbers all mean nothing, from doing harm or work with them."""

from __future__ import annotations

import functools
import importlib.util
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

LARGE = 1 << 20  # numbers: weights from here on are left as they are


def prepare() -> None:
    """Before the script is imported, for it may import functions by name."""
    _save_nothing()
    _leave_weights()
    _leave_lms()


def _save_nothing() -> None:
    """Nobody's checkpoint shall be overwritten by one of zeros."""
    skipped: set[Path] = set()

    def skip(target: Any) -> None:
        if not skipped:
            print("lms plan: nothing is saved, since numbers mean nothing here", flush=True)
        if isinstance(target, (str, os.PathLike)):
            skipped.add(Path(target).resolve())

    def save(value: Any, target: Any, *arguments: Any, **named: Any) -> None:
        if isinstance(target, io.BytesIO):
            torch_save(value, target, *arguments, **named)
        else:
            skip(target)

    def save_file(_tensors: Any, target: Any, *_: Any, **__: Any) -> None:
        skip(target)

    def unless_skipped(move: Callable[..., Any]) -> Callable[..., Any]:
        """Files that are saved beside their place are moved there."""

        @functools.wraps(move)
        def moved(source: Any, *arguments: Any, **named: Any) -> Any:
            if not skipped or Path(os.fsdecode(source)).resolve() not in skipped:
                return move(source, *arguments, **named)
            return None

        return moved

    torch_save, torch.save = torch.save, save
    os.replace, os.rename = unless_skipped(os.replace), unless_skipped(os.rename)
    if importlib.util.find_spec("safetensors"):
        import safetensors.torch

        safetensors.torch.save_file = save_file


def _leave_weights() -> None:
    """To draw a billion random numbers takes longer than all the rest, and fills the host."""

    def skipping(initialise: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(initialise)
        def initialised(tensor: Any, *arguments: Any, **named: Any) -> Any:
            if tensor.device.type == "cpu" and tensor.numel() >= LARGE:
                return tensor
            return initialise(tensor, *arguments, **named)

        return initialised

    for name, function in vars(torch.nn.init).copy().items():
        if name.endswith("_") and not name.startswith("_") and callable(function):
            setattr(torch.nn.init, name, skipping(function))


def _leave_lms() -> None:
    """Whether LMS is on, and the memory that it has, are what is planned, not what a script says.

    Only the names that scripts use: LMS's own are called with the variables of the environment when
    CUDA is initialised.
    """

    def ignore(*_: Any, **__: Any) -> None:
        pass

    torch.cuda.set_enabled_lms = torch.cuda.set_limit_lms = ignore
