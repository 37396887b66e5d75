"""Entry point `torch.backends`: what `import torch` runs in every process on the simulation."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from simcuda import flops, triton_kernels
from simcuda.control import active, library
from simcuda.when_imported import WhenImported


def autoload() -> None:
    """Puts the simulated operators in place; does nothing in an ordinary process."""
    path = os.environ.get("SIMCUDA_OPS_LIBRARY")
    if not path or not active():
        return
    import torch

    operators = ctypes.CDLL(path)
    operators.simopsRegister()
    if library().simcudaIsTimed():
        flops.attach(operators)
    _keep_cudnn_off()
    _keep_dynamo_out()
    triton_kernels.attach()
    # The allocator has no devices before CUDA is initialised.
    torch.cuda._lazy_call(operators.simopsAttachPoison)
    # Work that is still queued must not run while Python is being taken down.
    atexit.register(library().simcudaFinish)


def _keep_cudnn_off() -> None:
    """Makes PyTorch use its own kernels, whatever the program asks: cuDNN's are not simulated."""
    import torch
    from torch.backends import ContextProp

    torch._C._set_cudnn_enabled(False)

    def ignore(_value: bool) -> None:
        pass

    off = ContextProp(torch._C._get_cudnn_enabled, ignore)
    setattr(torch._C, "_set_cudnn_enabled", ignore)  # noqa: B010
    setattr(type(torch.backends.cudnn), "enabled", off)  # noqa: B010


DISABLED = "__dynamo_disable"  # where torch._compile keeps what it calls in a function's place


def _keep_dynamo_out() -> None:
    """Lets operators find their shapes without Dynamo, which takes a second to import.

    Those of PyTorch's meta kernels that are written in Python import it with their first call, so
    that it does not compile them. Until a program imports it there is nothing to keep it from.
    """
    plain = set(_hidden_from_dynamo())
    for function in plain:
        setattr(function, DISABLED, function)

    def let_it_in(_: ModuleType) -> None:
        sys.meta_path.remove(finder)
        for function in plain:
            delattr(function, DISABLED)

    finder = WhenImported({"torch._dynamo": let_it_in})
    sys.meta_path.insert(0, finder)


def _hidden_from_dynamo() -> Iterator[Callable[..., Any]]:
    """What torch._refs calls through the wrapper of torch._compile, which keeps it as "fn"."""
    import torch._compile
    import torch._refs

    for function in vars(torch._refs).values():
        while function:
            code = getattr(function, "__code__", None)
            if code and code.co_filename == torch._compile.__file__ and "fn" in code.co_freevars:
                yield function.__closure__[code.co_freevars.index("fn")].cell_contents
            function = getattr(function, "__wrapped__", None)
