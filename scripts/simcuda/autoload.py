"""Entry point `torch.backends`: what `import torch` runs in every process on the simulation."""

from __future__ import annotations

import atexit
import ctypes
import os

from simcuda import flops, triton_kernels
from simcuda.control import active, library


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
