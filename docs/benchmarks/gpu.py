"""Check and measure LMS on a machine with an NVIDIA GPU.

    pip install torch==2.11.0 pytest pytest-timeout pytest-xdist expecttest
    pip install --find-links wheels torch_lms
    python docs/benchmarks/gpu.py --out results

Four parts, `--part` chooses: the engine's tests on the GPU (`tests.log`); whether what is made
again has the same bits, over PyTorch's operators and the workloads; what LMS costs an operator; and
cells of `lms bench` in real time. A cell trains a workload with a rival in a process of its own,
within the ideal run's memory over a ratio. With `--compile` Inductor compiles the models. Each part
is written to OUT/results.md, and each cell to OUT/cells.jsonl, as soon as it is done.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from lms_bench import catalogue  # noqa: E402
from lms_bench.measurement import lms_statistics  # noqa: E402
from lms_bench.run_cell import first_line  # noqa: E402

PARTS = ("tests", "bits", "operators", "cells")
# They build C++ programs and check other things than what runs on the device.
NOT_OF_THE_DEVICE = ("test_sanitizers.py", "test_unit.py", "test_trace.py")
WORKLOADS = ("bert-large", "gpt2-xl", "resnet152", "vit-l16", "unet3d")
RIVALS = ("lms", "lms_deterministic", "lms_copies", "checkpoint", "save_on_cpu")
OPERATOR_DATABASE = ROOT / "tests" / "simcuda" / "opdb.py"
BITS_OF_TYPES = ("float32", "bfloat16")
# Memory that nobody writes.
UNWRITTEN = {
    f"aten::_scaled_dot_product_{kind}_attention, result {number}"
    for kind in ("flash", "cudnn")
    for number in (6, 7)
}
# Of which every value that can be is made again and compared: with the batch.
BITS_OF_WORKLOADS = {"resnet152": 16, "unet3d": 1, "vit-l16": 4, "bert-large": 2, "gpt2-xl": 1}
RATIOS = (1.5, 2.0)
MIB = 1 << 20
GIB = 1 << 30


def main() -> int:
    """Command line; the exit status is 0 if every test and every LMS cell passed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, help="folder for the results")
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all")
    parser.add_argument("--workload", action="append", help=f"default: {', '.join(WORKLOADS)}")
    parser.add_argument("--rival", action="append", help=f"default: {', '.join(RIVALS)}")
    parser.add_argument("--ratio", action="append", type=float, help="default: 1.5 and 2")
    parser.add_argument(
        "--iterations",
        type=int,
        default=8,
        help="of each cell; LMS first runs some more, in which it tries what is faster",
    )
    parser.add_argument("--compile", action="store_true", help="models by Inductor")
    parser.add_argument("--tests", nargs="+", default=[], help="of tests/engine (default: all)")
    parser.add_argument("--minutes", type=float, default=60, help="for each part, at most")
    parser.add_argument("--child", help=argparse.SUPPRESS)  # what it runs, as JSON
    args = parser.parse_args()
    if args.child is not None:
        given = json.loads(args.child)
        print(json.dumps(CHILDREN[given.pop("does")](**given)))
        return 0
    if not args.out:
        parser.error("--out FOLDER: where shall the results go?")
    args.out.mkdir(parents=True, exist_ok=True)
    write(args.out, [json.loads(child(__file__, "--child", '{"does": "machine"}'))])
    makers: dict[str, Callable[[argparse.Namespace], bool]] = {
        "tests": run_tests,
        "bits": compare_bits,
        "operators": measure_operators,
        "cells": measure_cells,
    }
    passed = [makers[part](args) for part in args.part or PARTS]
    return 0 if all(passed) else 1


def write(out: Path, lines: list[str]) -> None:
    """Adds lines to the results, and shows them."""
    text = "\n".join(lines)
    with (out / "results.md").open("a", encoding="utf-8") as file:
        file.write(text + "\n")
    print(text, flush=True)


def machine() -> str:
    """The card, what runs on it, and how fast its link is."""
    import torch

    size = GIB // 2
    host = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    card = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2)]
    ways = [(card[0], host[0]), (host[1], card[1])]
    link_speed(ways)  # the first copies take longer
    memory = torch.cuda.get_device_properties(0).total_memory / GIB
    speeds = [link_speed(chosen) for chosen in (ways[:1], ways[1:], ways)]
    return (
        f"{torch.cuda.get_device_name()}, {memory:.1f} GiB; PyTorch {torch.__version__}; "
        f"{os.cpu_count()} processors. Link: {speeds[0]:.1f} GB/s in, {speeds[1]:.1f} out, "
        f"{speeds[2]:.1f} both together."
    )


def link_speed(ways: list[tuple[Any, Any]]) -> float:
    """GB/s of copies that run at once, each from the second tensor to the first."""
    import torch

    times, begin, end = 8, *(torch.cuda.Event(enable_timing=True) for _ in range(2))
    streams = [torch.cuda.Stream() for _ in ways]
    torch.cuda.synchronize()
    begin.record()
    for stream, (to, source) in zip(streams, ways):
        stream.wait_event(begin)
        with torch.cuda.stream(stream):
            for _ in range(times):
                to.copy_(source, non_blocking=True)
        torch.cuda.current_stream().wait_stream(stream)
    end.record()
    torch.cuda.synchronize()
    return float(times * sum(to.numel() for to, _ in ways) / begin.elapsed_time(end) / 1e6)


def child(*command: str) -> str:
    """What `python COMMAND...`, which must succeed, wrote."""
    arguments = [sys.executable, *command]
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def run_tests(args: argparse.Namespace) -> bool:
    """Runs the engine's tests on the GPU, side by side."""
    folder = ROOT / "tests" / "engine"
    tests = [folder / name for name in args.tests] or [folder]
    command = [sys.executable, "-m", "pytest", "-v", "-rs", "--device", "cuda"]
    command += [
        "--dist=worksteal",
        "-n",
        str(min(os.cpu_count() or 1, 12)),
    ]
    command += [f"--ignore={folder / name}" for name in NOT_OF_THE_DEVICE]
    command += [str(test) for test in tests]
    log = args.out / "tests.log"
    with log.open("w", encoding="utf-8") as file:
        running = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
        try:
            running.wait(args.minutes * 60)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)  # it tells what it has until now
            running.wait(60)
    lines = log.read_text(encoding="utf-8").splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR", "SUBFAILED"))]
    write(args.out, ["", "Tests:", "", *failed[:40], *lines[-1:]])
    return running.returncode == 0


def compare_bits(args: argparse.Namespace) -> bool:
    """Makes again what can be, and names the operators whose bits differ."""
    end = time.monotonic() + args.minutes * 60
    environment = {**os.environ, "PYTORCH_LMS": "chaos", "OMP_NUM_THREADS": "1"}
    shards = {} if args.compile else begin_operators(args.out, environment)
    write(args.out, ["", "Made again and compared:", ""])
    names = args.workload or BITS_OF_WORKLOADS
    passed = [compare_workload(args, name, environment, end) for name in names]
    return (not shards or end_operators(args.out, shards, end)) and all(passed)


def begin_operators(out: Path, environment: dict[str, str]) -> dict[Path, subprocess.Popen[bytes]]:
    """Compares PyTorch's operators in processes that run side by side, by their reports."""
    names = json.loads(child(__file__, "--child", '{"does": "operators"}'))
    count = max(min(os.cpu_count() or 1, 14) // len(BITS_OF_TYPES), 1)
    running = {}
    for dtype in BITS_OF_TYPES:
        for shard in range(count):
            report = out / f"bits-{dtype}-{shard}.json"
            command = [sys.executable, str(OPERATOR_DATABASE), "--verify", "--out", str(report)]
            command += ["--dtype", dtype, "--operators", *names[shard::count]]
            running[report] = subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
    return running


def end_operators(out: Path, running: dict[Path, subprocess.Popen[bytes]], end: float) -> bool:
    """Waits for the processes, and writes what they found."""
    count, differing, late = 0, set(), 0
    for report, process in running.items():
        try:
            process.wait(max(0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            late += 1
            continue
        operators = json.loads(report.read_text())["operators"].values()
        report.unlink()
        count += sum(operator["compared"] for operator in operators)
        for operator in operators:
            differing |= set(operator["differing"]) - UNWRITTEN
    found = "; ".join(sorted(differing)) or "nothing differs"
    missing = f" ({late} of {len(running)} processes ran out of time)" if late else ""
    write(out, [f"- {count:,} values in samples of PyTorch's operators: {found}{missing}"])
    return not differing and not late


def compare_workload(
    args: argparse.Namespace, name: str, environment: dict[str, str], end: float
) -> bool:
    """Of one workload every value that can be made again."""
    out, compiled = args.out, args.compile
    batch = BITS_OF_WORKLOADS.get(name, 1)
    given = {"does": "bits", "name": name, "batch": batch, "compiled": compiled}
    command = [sys.executable, __file__, "--child", json.dumps(given)]
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=max(1, end - time.monotonic()),
        )
    except subprocess.TimeoutExpired:
        write(out, [f"- {name}: out of time"])
        return False
    if done.returncode:
        write(out, [f"- {name}: {(done.stderr.splitlines() or ['failed'])[-1]}"])
        return False
    found = json.loads(done.stdout.splitlines()[-1])
    different = "; ".join(found["differing"]) or "nothing differs"
    write(out, [f"- {found['compared']:,} values of {name}: {different}"])
    return not found["differing"]


def operators() -> list[str]:
    """Of PyTorch's database."""
    from torch.testing._internal.common_methods_invocations import op_db

    return sorted({op.name for op in op_db})


def compared(name: str, batch: int, compiled: bool) -> dict[str, Any]:
    """How many values of two steps of a workload were compared, and whose bits differ."""
    import torch

    torch.manual_seed(1)
    torch.cuda.init()
    torch.backends.cudnn.deterministic = True  # else convolutions are not made again
    torch.ops.lms.set_verify(True)
    training = catalogue.named("workload", catalogue.WORKLOADS, name).build(batch, "cuda")
    if compiled:
        training.model.compile()
    for _ in range(2):
        training.step()
    torch.cuda.synchronize()
    differing = sorted(set(torch.ops.lms.differing()) - UNWRITTEN)
    return {"compared": torch.ops.lms.compared(), "differing": differing}


def measure_operators(args: argparse.Namespace) -> bool:
    """What LMS costs an operator on the host."""
    write(args.out, ["", child(str(Path(__file__).with_name("operator_cost.py")))])
    return True


def measure_cells(args: argparse.Namespace) -> bool:
    """Trains the workloads with their rivals; a table of speeds, as shares of the ideal's."""
    end = time.monotonic() + args.minutes * 60
    head = ["workload", "need, GiB", "at", "rival", "ms", "of ideal"]
    head += ["in GB", "out GB", "made GB", "note"]
    write(args.out, ["", row(head), row(["---"] * len(head))])
    passed = True
    for name in args.workload or WORKLOADS:
        ideal = cell(args, name, "ideal", 0)
        if ideal["status"] != "ok":
            write(args.out, [row([name, "", "", "ideal", "", "", "", "", "", ideal["reason"]])])
            continue
        need = ideal["peak_reserved_bytes"]
        write(args.out, [described(name, need, 1, "ideal", ideal, ideal)])
        for ratio, rival in cells(args.ratio or RATIOS, args.rival or RIVALS):
            if time.monotonic() > end:
                write(args.out, ["out of time"])
                return False
            limit = int(need / ratio) // (2 * MIB) * (2 * MIB)
            found = cell(args, name, rival, limit)
            write(args.out, [described(name, need, ratio, rival, found, ideal)])
            passed = passed and (rival != "lms" or found["status"] == "ok")
    return passed


def cells(ratios: tuple[float, ...], rivals: tuple[str, ...]) -> Iterator[tuple[float, str]]:
    """Rivals side by side at each ratio."""
    for ratio in ratios:
        for rival in rivals:
            yield ratio, rival


def cell(args: argparse.Namespace, workload: str, rival: str, limit: int) -> dict[str, Any]:
    """What one run in a process of its own took."""
    given = {"name": workload, "rival": rival, "limit": limit, "iterations": args.iterations}
    given["compiled"] = args.compile
    command = [sys.executable, __file__, "--child", json.dumps({"does": "cell", **given})]
    variables = catalogue.named("rival", catalogue.RIVALS, rival).variables
    done = subprocess.run(
        command,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        reason = (done.stderr.splitlines() or [f"exit status {done.returncode}"])[-1]
        found = {"status": "failed", "reason": reason}
    else:
        found = json.loads(lines[-1])
    with (args.out / "cells.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({**given, **found, "stderr": done.stderr[-2000:]}) + "\n")
    return found


def run_cell(name: str, rival: str, limit: int, iterations: int, compiled: bool) -> dict[str, Any]:
    """Trains a workload with a rival within so many bytes of device memory (0: all of it)."""
    import torch

    competing = catalogue.named("rival", catalogue.RIVALS, rival)
    torch.manual_seed(1)
    try:
        if limit and competing.uses_lms:
            torch.cuda.set_limit_lms(limit)
        elif limit:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(limit / total)
        found = catalogue.named("workload", catalogue.WORKLOADS, name)
        training = found.build(found.batch, "cuda")
        competing.prepare(training)
        if compiled:
            training.model.compile()
        return {"status": "ok", **measured(training, iterations, competing.learning)}
    except torch.cuda.OutOfMemoryError as error:
        return {"status": "oom", "reason": first_line(error)}


def measured(training: Any, iterations: int, learning: int) -> dict[str, Any]:
    """Milliseconds of each iteration on the device, and what was moved in the last.

    The median is of those from the fourth on, after `learning` that come first.
    """
    import torch

    counted = iterations - min(catalogue.FIRST_COUNTED, iterations - 1)
    iterations += learning
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(iterations + 1)]
    hosts, before = [time.perf_counter()], lms_statistics()
    marks[0].record()
    for iteration in range(iterations):
        if iteration == iterations - 1:
            before = lms_statistics()
        training.step()
        marks[iteration + 1].record()
        hosts.append(time.perf_counter())
    torch.cuda.synchronize()
    after = lms_statistics()
    steps = [one.elapsed_time(other) for one, other in pairwise(marks)]
    return {
        "steps_ms": steps,
        "host_ms": [1e3 * (after - before) for before, after in pairwise(hosts)],
        "step_ms": median(steps[-counted:]),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "lms": after,
        "lms_step": {key: after[key] - before[key] for key in after},
    }


def described(
    name: str, need: int, ratio: float, rival: str, found: dict[str, Any], ideal: dict[str, Any]
) -> str:
    """A cell's row."""
    start = [name, f"{need / GIB:.1f}", f"{ratio:g}", rival]
    if found["status"] != "ok":
        return row([*start, "", "", "", "", "", f"{found['status']}: {found['reason'][:120]}"])
    moved = found["lms_step"]
    return row(
        [
            *start,
            f"{found['step_ms']:,.0f}",
            f"{100 * ideal['step_ms'] / found['step_ms']:.0f} %",
            f"{moved.get('lms.page_in.bytes', 0) / 1e9:.1f}",
            f"{moved.get('lms.page_out.bytes', 0) / 1e9:.1f}",
            f"{moved.get('lms.recompute.bytes', 0) / 1e9:.1f}",
            " ".join(f"{step:.0f}" for step in found["steps_ms"][:3]) + " ms at first",
        ]
    )


def row(cells: list[str]) -> str:
    """Of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


# What runs in a process of its own.
CHILDREN: dict[str, Callable[..., Any]] = {
    "machine": machine,
    "operators": operators,
    "bits": compared,
    "cell": run_cell,
}

if __name__ == "__main__":
    sys.exit(main())
