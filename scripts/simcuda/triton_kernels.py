"""Kernels that Triton compiles, for Inductor or for a user: run by Triton's interpreter.

The real thing goes on up to the driver's cuLaunchKernel: Triton compiles for a real card, its
launchers ask tensors for addresses and pack parameters. What the simulated driver then has is a
cubin and addresses in the device's memory. The interpreter computes on these what the kernel's
source says, when the stream gets there. In virtual time nothing is computed: see triton_costs.py.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import itertools
import math
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

from simcuda import triton_costs, triton_trials
from simcuda.control import library
from simcuda.when_imported import WhenImported

# Of signatures, which say how the parameter of a launch is stored.
_STORED: dict[str, Any] = {
    "i1": ctypes.c_int8,
    "i8": ctypes.c_int8,
    "i16": ctypes.c_int16,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "u1": ctypes.c_uint8,
    "u8": ctypes.c_uint8,
    "u16": ctypes.c_uint16,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
    "fp32": ctypes.c_float,
    "f32": ctypes.c_float,
    "fp64": ctypes.c_double,
}

# And how the language names what pointers point to.
_TYPES = {
    **{f"i{bits}": f"int{bits}" for bits in (1, 8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"fp{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{"bf16": "bfloat16", "fp8e5": "float8e5", "fp8e4nv": "float8e4nv"},
}


class _Cost(ctypes.Structure):
    """SimcudaKernel of simcuda.h."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("flops", ctypes.c_double),
        ("rate", ctypes.c_int),
        ("bytes", ctypes.c_double),
        ("launches", ctypes.c_int),
    ]


_Grid = ctypes.POINTER(ctypes.c_uint)
_Find = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p)
_Prepare = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, _Grid, ctypes.POINTER(ctypes.c_void_p))
_Run = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64)
_Forget = ctypes.CFUNCTYPE(None, ctypes.c_int64)
_Measure = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, _Grid, ctypes.POINTER(_Cost))


class _Runner(ctypes.Structure):
    """SimcudaRunner of simcuda.h."""

    _fields_ = [
        ("find", _Find),
        ("prepare", _Prepare),
        ("run", _Run),
        ("forget", _Forget),
        ("measure", _Measure),
    ]


@dataclass(frozen=True)
class _Function:
    """A kernel that the driver has loaded."""

    source: Any
    name: bytes  # as timelines have it
    multiplies: bool  # matrices


def attach() -> None:
    """Makes the simulated driver run what Triton compiles from now on."""
    runner = _Runner(
        _Find(_find), _Prepare(_prepare), _Run(_run), _Forget(_launches.pop), _Measure(_measure)
    )
    _kept.append(runner)
    library().simcudaSetRunner(ctypes.byref(runner))
    atexit.register(library().simcudaSetRunner, None)  # graphs live longer than what it calls
    changes = {
        "triton.compiler.compiler": _remember_sources,
        "triton.testing": triton_trials.count_programs,
        "torch._inductor.runtime.benchmarking": triton_trials.count_programs,
        "torch._inductor.config": _configure,
    }
    if library().simcudaIsTimed():
        changes |= {
            "triton.runtime.jit": triton_costs.watch_users,
            "torch._inductor.runtime.triton_heuristics": triton_costs.watch_inductor,
        }
    for name in sys.modules.keys() & changes.keys():
        changes.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, WhenImported(changes))


_kept: list[Any] = []  # what the driver has the address of
_sources: dict[bytes, tuple[Any, bool]] = {}  # by cubin; and whether it multiplies matrices
_functions: list[_Function] = []  # by number; never shorter, for the driver has their names
_launches: dict[int, Callable[[], None]] = {}
_numbers = itertools.count()
_language = threading.RLock()  # the interpreter patches it, the compiler needs it as it is


def _remember_sources(compiler: ModuleType) -> None:
    init = compiler.CompiledKernel.__init__

    @functools.wraps(init)
    def remember(self: Any, src: Any, *args: Any, **kwargs: Any) -> None:
        init(self, src, *args, **kwargs)
        _sources[self.kernel] = src, "tt.dot" in self.asm.get("ttir", "")

    compiler.CompiledKernel.__init__ = remember
    for name in ("hash", "make_ir"):  # both look at the language
        setattr(compiler.ASTSource, name, _alone(getattr(compiler.ASTSource, name)))


def _alone(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def alone(*args: Any, **kwargs: Any) -> Any:
        with _language:
            return function(*args, **kwargs)

    return alone


def _configure(config: Any) -> None:
    """Sets what Inductor has no variables for."""
    # Choices are those of simulated trials, in each run, and no real card's.
    config.autotune_local_cache = False
    # It then notes beside a kernel what it knows of the kernel's work, for triton_costs.
    config.benchmark_kernel = bool(library().simcudaIsTimed())


# --- what the driver calls ---


def _find(image: int, name: bytes) -> int:
    found = _sources.get(_elf(image))
    if found is None:
        return _fail("a cubin was loaded that this process has not compiled")
    source, multiplies = found
    _functions.append(_Function(source, b"triton::" + name, multiplies))
    return len(_functions) - 1


def _prepare(function: int, grid: Any, parameters: Any) -> int:
    number = next(_numbers)
    try:
        source, place = _functions[function].source, tuple(grid[:3])
        if triton_trials.is_trial(math.prod(place)):
            _launches[number] = _do_nothing
        else:
            arguments = _arguments(source, parameters)
            _launches[number] = functools.partial(_interpret, source, place, arguments)
    except Exception as error:
        return _fail("".join(traceback.format_exception(error)))
    return number


def _do_nothing() -> None:
    pass


def _measure(function: int, grid: Any, cost: Any) -> int:
    """In virtual time, in the place of the others."""
    if triton_trials.is_trial(math.prod(grid[:3])):
        return 0  # it takes no time
    kernel = _functions[function]
    work = triton_costs.work_of(kernel.source.fn, tuple(grid[:3]))
    if work is None:
        return _refuse(kernel, "it was launched past `run` of Triton or Inductor")
    if kernel.multiplies and not work.flops:
        return _refuse(kernel, "it multiplies matrices, and nobody counts how much")
    cost[0] = _Cost(kernel.name, work.flops, work.rate, work.bytes, 1)
    return 0


def _refuse(kernel: _Function, why: str) -> int:
    return _fail(f"{kernel.name.decode()} is not simulated in virtual time: {why}")


def _run(launch: int) -> int:
    try:
        _launches[launch]()
    except Exception as error:
        return _fail("".join(traceback.format_exception(error)))
    return 0


def _fail(why: str) -> int:
    print(f"simcuda: {why}", file=sys.stderr)
    return -1


def _elf(image: int) -> bytes:
    """The image, whose size is where the table of its sections ends, or that of its programs."""
    header = ctypes.string_at(image, 64)
    programs, sections = (int.from_bytes(header[at : at + 8], "little") for at in (32, 40))
    program_size, program_count, section_size, section_count = (
        int.from_bytes(header[at : at + 2], "little") for at in (54, 56, 58, 60)
    )
    size = max(programs + program_size * program_count, sections + section_size * section_count)
    return ctypes.string_at(image, size)


# --- interpreting ---


def _arguments(source: Any, parameters: Any) -> dict[str, Any]:
    """By name: the constants of the compilation, and what the launch passes."""
    names = source.fn.arg_names
    arguments: dict[str, Any] = {
        key if isinstance(key, str) else names[key[0] if isinstance(key, tuple) else key]: value
        for key, value in source.constants.items()
    }
    passed = itertools.count()
    for key, kind in source.signature.items():
        name = key if isinstance(key, str) else names[key]
        if kind == "constexpr":
            arguments.setdefault(name, None)
        elif name not in arguments:
            arguments[name] = _argument(kind, parameters[next(passed)])
    return arguments


def _argument(kind: str, address: int) -> Any:
    """As the interpreter has them: a tensor of one address or number, or a number with a point."""
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    if kind.startswith("*"):
        type_ = tl.pointer_type(getattr(tl, _TYPES[kind.lstrip("*k")]))
        pointer = np.array([ctypes.c_uint64.from_address(address).value], dtype=np.uint64)
        return tl.tensor(interpreter.TensorHandle(pointer, type_), type_)
    if kind in ("fp16", "bf16"):
        bits = np.array([ctypes.c_uint16.from_address(address).value], dtype=np.uint16)
        wide = bits.astype(np.uint32) << 16
        return float((wide.view(np.float32) if kind == "bf16" else bits.view(np.float16))[0])
    value: Any = _STORED[kind].from_address(address).value
    return interpreter._implicit_cvt(value) if isinstance(value, int) else value


def _interpret(source: Any, grid: Sequence[int], arguments: dict[str, Any]) -> None:
    from triton.runtime import interpreter

    with _language, _patched_language():
        builder = interpreter.interpreter_builder
        builder.set_grid_dim(*grid)
        for place in itertools.product(*map(range, grid)):
            builder.set_grid_idx(*place)
            _rewritten(source.fn.fn)(**arguments)


@contextlib.contextmanager
def _patched_language() -> Iterator[None]:
    """Triton's language as the interpreter needs it, for all functions that a kernel calls."""
    import triton.language as tl
    from triton.runtime import interpreter, jit

    _teach()
    classes = [owner for owner in vars(tl.core).values() if isinstance(owner, type)]
    owners = [tl, tl.core, tl.math, jit.JITFunction, *classes]
    before = [dict(vars(owner)) for owner in owners]  # older releases do not restore it
    # It looks for the language in what a function sees.
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    # Its own fails with NumPy 2.4.
    tl.tensor.__index__ = lambda tensor: tensor.handle.data.item()
    jit.JITFunction.__call__ = lambda self, *args, **kwargs: _rewritten(self.fn)(*args, **kwargs)
    try:
        yield
    finally:
        for owner, had in zip(owners, before):
            _restore(owner, had)


def _restore(owner: Any, had: dict[str, Any]) -> None:
    for name, value in list(vars(owner).items()):
        if name not in had:
            delattr(owner, name)
        elif had[name] is not value:
            setattr(owner, name, had[name])


@functools.cache
def _rewritten(function: Callable[..., Any]) -> Callable[..., Any]:
    from triton.runtime import interpreter

    rewritten: Callable[..., Any] = interpreter.InterpretedFunction(function).rewrite()
    return rewritten


@functools.cache
def _teach() -> None:
    """What the interpreter lacks."""
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime.interpreter import InterpreterBuilder

    if not hasattr(InterpreterBuilder, "get_int1_ty"):  # Triton 3.2
        InterpreterBuilder.get_int1_ty = lambda _builder: tl.int1
        InterpreterBuilder.get_all_ones_value = _all_ones
    # CUDA's mathematics, which the compiler takes from a module of the card's, by the names.
    for name, function in list(vars(libdevice).items()):
        if callable(function) and getattr(function, "__module__", "") == libdevice.__name__:
            setattr(libdevice, name, functools.wraps(function)(_mathematics(name)))


def _all_ones(_builder: Any, type_: Any) -> Any:
    """Of whole numbers and, as in later releases, truth values."""
    import numpy as np
    from triton.runtime import interpreter

    return interpreter.TensorHandle(np.full(1, -1, interpreter._get_np_dtype(type_)), type_.scalar)


# Where PyTorch has another name for what libdevice computes.
_NAMES = {
    "rint": "round",
    "nearbyint": "round",
    "fast_expf": "exp",
    "fast_logf": "log",
    "mul_rn": "mul",
}


def _fused(a: Any, b: Any, c: Any) -> Any:
    """A product, of float32 exact, and a sum."""
    return (a.double() * b.double() + c.double()).to(a.dtype)


def _mathematics(name: str) -> Callable[..., Any]:
    import torch
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    known = _NAMES.get(name, name)
    if known == "fma":
        compute: Any = _fused
    else:
        compute = getattr(torch, known, None) or getattr(torch.special, known, None)

    def call(*args: Any, **_: Any) -> Any:
        if compute is None:
            raise NotImplementedError(f"libdevice.{name} is not simulated")
        tensors = [arg for arg in args if isinstance(arg, tl.tensor)]
        values = [
            torch.from_numpy(arg.handle.data) if isinstance(arg, tl.tensor) else torch.tensor(arg)
            for arg in args
        ]
        result = compute(*values).numpy()
        type_ = tensors[0].type.scalar
        if result.dtype == bool:
            result, type_ = result.astype("int32"), tl.int32
        handle = TensorHandle(result, type_)
        if any(tensor.type.is_block() for tensor in tensors):  # with which numbers are combined
            type_ = tl.block_type(type_, list(result.shape))
        return tl.tensor(handle, type_)

    return call
