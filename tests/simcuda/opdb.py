"""Runs PyTorch's operator database on "cuda" and compares it with the CPU.

    python opdb.py --out REPORT.json [--operators NAME...] [--dtype float32] [--shapes|--digest]
        [--verify]

Run it with the environment of simcuda.environment(). Every sample of every operator is computed
forward and backward on both devices from the same seed. The report says per operator whether they
agree and gives a digest of everything that the device computed: two runs of the same torch on the
same machine, say with and without LMS, must give the same digests.

With --verify (and PYTORCH_LMS=chaos) LMS makes again what it could, and compares the bits: an
operator in which some differ is in the report as one that differs.

The operators run in a child process; when one ends it, the report says so and the next goes on.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SEED = 1234

# Their results are uninitialised memory: only sizes and types can agree.
UNINITIALISED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}
# Types tried in turn: an operator is run with the first that it supports.
DTYPES = ("float32", "float64", "complex64", "int64", "int32", "bool", "float16", "bfloat16")


@dataclasses.dataclass
class Outcome:
    """What one operator did."""

    operator: str
    status: str  # agree, differ, error (on the device only), skipped, died
    dtype: str = ""
    samples: int = 0
    random: bool = False  # results depend on the seed: only sizes and types are compared
    digest: str = ""  # sha256 of outputs and gradients on the device
    message: str = ""
    # With --verify: values that were made again, and results of operators that had other bits.
    compared: int = 0
    differing: list[str] = dataclasses.field(default_factory=list)
    unsimulated: int = 0  # kernels launched that nothing simulates; 0 on a real card


def main() -> int:
    """Command line; exit status 0 when every operator agrees or is skipped."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="the report, JSON")
    parser.add_argument("--operators", nargs="*", default=[], help="only these names")
    parser.add_argument("--dtype", choices=DTYPES, help="instead of the first supported")
    parser.add_argument("--shapes", action="store_true", help="compare only types and sizes")
    parser.add_argument("--digest", action="store_true", help="compare nothing with the CPU")
    parser.add_argument("--verify", action="store_true", help="LMS makes bytes again and compares")
    parser.add_argument("--samples", type=int, default=1000, help="at most so many of each")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--start", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(arguments)
    outcomes = list(run_workers(arguments))
    report = summarise(outcomes)
    arguments.out.write_text(json.dumps(report, indent=1))
    print(f"{report['agree']} of {report['total']} operators agree, report in {arguments.out}")
    return 0 if report["agree"] == report["total"] else 1


def summarise(outcomes: list[Outcome]) -> dict[str, Any]:
    """The report; operators that the CPU cannot run do not count."""
    counted = [outcome for outcome in outcomes if outcome.status != "skipped"]
    return {
        "agree": sum(outcome.status == "agree" for outcome in counted),
        "total": len(counted),
        "skipped": len(outcomes) - len(counted),
        "unsimulated_launches": sum(outcome.unsimulated for outcome in counted),
        "operators": {outcome.operator: dataclasses.asdict(outcome) for outcome in outcomes},
    }


def run_workers(arguments: argparse.Namespace) -> Iterator[Outcome]:
    """Runs all operators, in a new process after each death."""
    done = 0
    while True:
        command = [sys.executable, __file__, *sys.argv[1:], "--worker", "--start", str(done)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
            current, finished = "", False
            assert worker.stdout is not None
            for line in worker.stdout:
                event, _, rest = line.rstrip("\n").partition(" ")
                if event == "BEGIN":
                    current = rest
                elif event == "OUTCOME":
                    yield Outcome(**json.loads(rest))
                    current = ""
                    done += 1
                elif event == "END":
                    finished = True
        if finished:
            return
        if current:
            yield Outcome(current, "died", message=f"exit status {worker.returncode}")
            done += 1
        elif worker.returncode != RESTART:
            raise SystemExit(f"opdb.py: the worker ended with {worker.returncode} before it began")


RESTART = 75  # exit status of a worker that asks for a new one


def work(arguments: argparse.Namespace) -> int:
    """The child process: one line per operator on standard output."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what operators print must not look like an outcome
    import torch
    from torch.testing._internal import common_methods_invocations
    from torch.testing._internal.common_methods_invocations import op_db

    # Random operators are wrapped to be run with a fixed seed; here the seed is set for all.
    def plain(op: Any, *args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    setattr(common_methods_invocations, "wrapper_set_seed", plain)  # noqa: B010
    warnings.simplefilter("ignore")
    if arguments.verify:
        torch.ops.lms.set_verify(True)
    known: set[str] = set()  # what differed before
    compared = 0
    chosen = [op for op in op_db if not arguments.operators or op.name in arguments.operators]
    for op in chosen[arguments.start :]:
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        channel.write(f"BEGIN {name}\n")
        before = launches()
        outcome = run_operator(op, name, arguments)
        if arguments.verify:
            outcome.compared = torch.ops.lms.compared() - compared
            outcome.differing = sorted(set(torch.ops.lms.differing()) - known)
            if outcome.differing:
                outcome.status = "differ"
                outcome.message = f"made again: {'; '.join(outcome.differing)}"
            known.update(outcome.differing)
            compared += outcome.compared
        outcome.unsimulated = launches() - before
        channel.write(f"OUTCOME {json.dumps(dataclasses.asdict(outcome))}\n")
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            channel.flush()
            os._exit(RESTART)  # the device's error sticks to the process
    channel.write("END\n")
    return 0


def launches() -> int:
    """Kernels launched so far that nothing simulates."""
    try:
        import simcuda
    except ImportError:  # a real card
        return 0
    return simcuda.stats().unsimulated_launches if simcuda.active() else 0


def run_operator(op: Any, name: str, arguments: argparse.Namespace) -> Outcome:
    """Runs and compares all samples of one operator."""
    import torch

    supported = op.supported_dtypes("cpu") & op.supported_dtypes("cuda")
    names = [arguments.dtype] if arguments.dtype else DTYPES
    dtype = next((getattr(torch, n) for n in names if getattr(torch, n) in supported), None)
    if dtype is None:
        return Outcome(name, "skipped", message="no common type")
    outcome = Outcome(name, "agree", dtype=str(dtype).removeprefix("torch."))
    digest = hashlib.sha256()
    gradients = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    torch.manual_seed(SEED)
    try:
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=gradients))
    except Exception as error:  # some samples need packages that are not there
        return Outcome(name, "skipped", message=f"no samples: {error}")
    for sample in samples[:: math.ceil(len(samples) / arguments.samples) or 1]:
        call = (sample.input, sample.args, sample.kwargs)
        try:
            expected = compute(op, call, gradients, SEED)
            seeds = () if arguments.digest else (SEED + 1, SEED + 2)
            others = [compute(op, call, gradients, seed) for seed in seeds]
        except Exception:  # not the device's fault
            continue
        outcome.samples += 1
        random = op.name in UNINITIALISED or not all(equal(expected, o) for o in others)
        outcome.random |= random
        try:
            found = compute(op, to_cuda(call), gradients, SEED)
            add_to_digest(digest, found)
            if arguments.digest:
                difference = ""
            elif arguments.shapes:
                difference = compare_shapes(expected, found)
            else:
                difference = compare(expected, found, shapes_only=random)
        except Exception as error:
            outcome.status, outcome.message = "error", f"{type(error).__name__}: {error}"[:1000]
            break
        if difference:
            outcome.status, outcome.message = "differ", difference[:1000]
            break
    if outcome.samples == 0:
        return Outcome(name, "skipped", message="no sample runs on the CPU")
    outcome.digest = digest.hexdigest()
    return outcome


def compute(op: Any, call: Any, gradients: bool, seed: int) -> list[Any]:
    """Outputs, and gradients of the inputs that want one, all on the CPU."""
    import torch
    from torch.utils._pytree import tree_leaves, tree_map

    def fresh(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().clone().requires_grad_(value.requires_grad)
        return value

    call = tree_map(fresh, call)
    torch.manual_seed(seed)
    value, args, kwargs = call
    result = op(value, *args, **kwargs)
    leaves = tree_leaves(result)
    outputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    found: list[Any] = [
        leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
    ]
    inputs = [t for t in tree_leaves(call) if isinstance(t, torch.Tensor) and t.requires_grad]
    outputs = [output for output in outputs if output.requires_grad]
    if gradients and inputs and outputs:
        generator = torch.Generator().manual_seed(SEED)
        starts = [
            torch.randn(o.shape, dtype=o.dtype, generator=generator).to(o.device) for o in outputs
        ]
        grads = torch.autograd.grad(outputs, inputs, starts, allow_unused=True)
        found += [None if grad is None else grad.cpu() for grad in grads]
    return found


def to_cuda(call: Any) -> Any:
    """The same arguments on the device."""
    import torch
    from torch.utils._pytree import tree_map

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().to("cuda").requires_grad_(value.requires_grad)
        if isinstance(value, torch.device) or value == "cpu":
            return torch.device("cuda")
        if isinstance(value, torch.Generator):
            return torch.Generator("cuda").manual_seed(value.initial_seed())
        return value

    return tree_map(move, call)


def equal(one: list[Any], other: list[Any]) -> bool:
    """Whether two runs on the CPU gave the same."""
    return compare(one, other, shapes_only=False, exact=True) == ""


def compare(
    expected: list[Any], found: list[Any], *, shapes_only: bool, exact: bool = False
) -> str:
    """What is different, or ""."""
    import torch

    if len(expected) != len(found):
        return f"{len(expected)} results on the CPU, {len(found)} on the device"
    for number, (a, b) in enumerate(zip(expected, found, strict=True)):
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            if type(a) is not type(b) or (a != b and not shapes_only):
                return f"result {number}: {a!r} on the CPU, {b!r} on the device"
        elif shapes_only:
            if a.dtype != b.dtype or a.dim() != b.dim():
                return f"result {number}: {a.dtype}{a.shape} and {b.dtype}{b.shape}"
        else:
            single = a.dtype in (torch.float32, torch.complex64)
            bound = 0.0 if exact else 1e-4 if single else None  # None: by the type
            is_plain = a.layout == b.layout == torch.strided and a.dtype.is_floating_point
            if is_plain and a.dtype == b.dtype and torch.equal(a, b):
                continue  # quicker than to assert it
            try:
                torch.testing.assert_close(b, a, rtol=bound, atol=bound, equal_nan=True)
            except (AssertionError, NotImplementedError, RuntimeError) as error:
                return f"result {number}: {error}"
    return ""


def compare_shapes(expected: list[Any], found: list[Any]) -> str:
    """What is different in types and sizes, or ""."""
    import torch

    def shape(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return f"{value.dtype}{list(value.shape)}"
        return type(value).__name__

    shapes = [shape(value) for value in expected], [shape(value) for value in found]
    return "" if shapes[0] == shapes[1] else f"{shapes[0]} on the CPU, {shapes[1]} on the device"


def add_to_digest(digest: Any, found: list[Any]) -> None:
    """Adds type, sizes and bytes of every result."""
    import torch

    for value in found:
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
            plain = torch.empty(value.shape, dtype=value.dtype).copy_(value)
            digest.update(plain.flatten().view(torch.uint8).numpy().tobytes())
        else:
            digest.update(repr(value).encode())


if __name__ == "__main__":
    sys.exit(main())
