"""Train one workload with one rival on the simulated device; print what it took as one JSON object.

Runs in the simulated device's timed mode, whose variables the caller has set. Times are virtual
nanoseconds and sizes bytes. All but "machine" is the same in every run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from lms_bench import catalogue, timeline
from lms_bench.catalogue import FIRST_COUNTED as FIRST

GANTT_RESOLUTION = 2000  # parts of an iteration that a picture can show


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", required=True)
    parser.add_argument("--rival", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--iterations", type=int, default=6)
    args = parser.parse_args()
    if args.iterations <= FIRST:
        parser.error(f"--iterations must be more than {FIRST}")
    workload = catalogue.named("workload", catalogue.WORKLOADS, args.workload)
    rival = catalogue.named("rival", catalogue.RIVALS, args.rival)
    os.environ.update(rival.variables)  # read when torch is imported
    print(json.dumps(outcome(workload, rival, args.batch, args.iterations)))


def outcome(
    workload: catalogue.Workload, rival: catalogue.Rival, batch: int, iterations: int
) -> dict[str, Any]:
    """What a cell of the table says, also when the rival fails."""
    import torch

    began = time.monotonic()
    try:
        found = {"status": "ok", **measure(workload, rival, batch, iterations)}
    except torch.cuda.OutOfMemoryError as error:
        found = {"status": "oom", "reason": first_line(error)}
    except Exception as error:
        import traceback

        traceback.print_exc()
        found = {"status": "failed", "reason": f"{type(error).__name__}: {first_line(error)}"}
    host_memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return {**found, "machine": {"seconds": time.monotonic() - began, "host_bytes": host_memory}}


def first_line(error: Exception) -> str:
    """Of its message."""
    return (str(error).splitlines() or [""])[0]


def measure(
    workload: catalogue.Workload, rival: catalogue.Rival, batch: int, iterations: int
) -> dict[str, Any]:
    """Trains, and takes the mean from the fourth iteration on, of LMS from the nineteenth."""
    import simcuda
    import torch

    first, number = FIRST + rival.learning, iterations - FIRST + rival.more
    last = first + number
    training = workload.build(batch, "cuda")
    rival.prepare(training)
    torch.cuda.synchronize()
    marks, copied, engine = [ready()], [], []
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "timeline.jsonl"
        for iteration in range(last):
            if iteration == first:
                simcuda.timeline(record)
                copied.append(traffic())
                engine.append(lms_statistics())
            announce_step()
            training.step()
            marks.append(ready())
            if iteration == 0 and (missing := training.untrained()):
                raise RuntimeError(
                    f"{len(missing)} parameters got no gradient, such as {missing[0]}"
                )
        copied.append(traffic())
        engine.append(lms_statistics())
        torch.cuda.synchronize()
        simcuda.timeline(None)
        counted = marks[first:]
        work = timeline.read(record, counted[0], counted[-1])
    steps = [after - before for before, after in pairwise(marks)]
    return {
        "steps_ns": steps,
        "step_ns": sum(steps[first:]) / number,
        "h2d_bytes": (copied[1][0] - copied[0][0]) / number,
        "d2h_bytes": (copied[1][1] - copied[0][1]) / number,
        "busy_ns": {engine: timeline.length(spans) / number for engine, spans in work.items()},
        "hidden": hidden(work),
        **memory(),
        "lms": engine[1],
        "lms_step": {
            name: (value - engine[0][name]) / number
            for name, value in engine[1].items()
            if value != engine[0][name]
        },
        "gantt": gantt(work, *counted[:2]),
        "gantt_ns": counted[1] - counted[0],
    }


def announce_step() -> None:
    """Where a trace is written it shall say where iterations begin."""
    import torch

    if os.environ.get("PYTORCH_LMS_TRACE") and hasattr(torch.cuda.lms, "step"):
        torch.cuda.lms.step()


def ready() -> int:
    """When all that the program has asked for until now will be done; makes nobody wait."""
    import simcuda

    return max(simcuda.virtual_time(), simcuda.device_time())


def traffic() -> tuple[int, int]:
    """Bytes copied to the device and from it."""
    import simcuda

    stats = simcuda.stats()
    return stats.host_to_device_bytes, stats.device_to_host_bytes


def memory() -> dict[str, int]:
    """Peaks since the process began."""
    import simcuda
    import torch

    stats = simcuda.stats()
    if stats.unsimulated_launches:
        raise RuntimeError(f"kernels were not simulated: {', '.join(simcuda.unsimulated())}")
    return {
        "capacity_bytes": stats.capacity_bytes,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "peak_page_locked_bytes": stats.peak_page_locked_bytes,
    }


def lms_statistics() -> dict[str, int]:
    """What the engine says of itself, since the process began; empty without it."""
    import torch

    if not hasattr(torch.cuda, "get_enabled_lms") or not torch.cuda.get_enabled_lms():
        return {}
    return {
        name: value
        for name, value in torch.cuda.lms.stats().items()
        if name.startswith(("lms.", "alloc_distribution."))
    }


def hidden(work: dict[str, list[timeline.Span]]) -> float | None:
    """The share of copy time during which the device also computed; None without copies."""
    copies = [*work["h2d"], *work["d2h"]]
    if not copies:
        return None
    under = sum(timeline.overlap(work[engine], work["compute"]) for engine in ("h2d", "d2h"))
    return under / timeline.length(copies)


def gantt(
    work: dict[str, list[timeline.Span]], begin: int, end: int
) -> dict[str, list[timeline.Span]]:
    """When each engine worked from `begin` on; gaps too small for a picture are closed."""
    gap = (end - begin) // GANTT_RESOLUTION
    return {
        engine: [
            (start - begin, min(stop, end) - begin)
            for start, stop in timeline.merged(spans, gap)
            if start < end
        ]
        for engine, spans in work.items()
    }


if __name__ == "__main__":
    main()
