"""Train one workload with one rival on the simulated device; print what it took as one JSON object.

Runs in the simulated device's timed mode, whose variables the caller has set. Times are virtual
nanoseconds and sizes bytes. All but "machine" is the same in every run. Over several devices the
training is sharded, in a process for each; figures are then those of the first.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lms_bench import catalogue, ranks
from lms_bench.measurement import Measurement


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", required=True)
    parser.add_argument("--rival", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--iterations", type=int, default=catalogue.ITERATIONS)
    parser.add_argument("--compile", action="store_true", help="by Inductor, the model")
    parser.add_argument("--devices", type=int, default=1, help="over which FSDP2 shards it")
    args = parser.parse_args()
    if args.iterations <= catalogue.FIRST_COUNTED:
        parser.error(f"--iterations must be more than {catalogue.FIRST_COUNTED}")
    workload = catalogue.named("workload", catalogue.WORKLOADS, args.workload)
    rival = catalogue.named("rival", catalogue.RIVALS, args.rival)
    if args.devices > 1 and not ranks.is_rank():
        print(ranks.run([sys.executable, *sys.argv], args.devices), end="")
        return
    os.environ.update(rival.variables)  # read when torch is imported
    found = outcome(workload, rival, args.batch, args.iterations, args.compile)
    print(json.dumps(found), flush=True)
    if ranks.is_rank():
        os._exit(found["status"] != "ok")  # the others would wait for what it has queued


def outcome(
    workload: catalogue.Workload,
    rival: catalogue.Rival,
    batch: int,
    iterations: int,
    compiled: bool,
) -> dict[str, Any]:
    """What a cell of the table says, also when the rival fails."""
    import torch

    began = time.monotonic()
    try:
        found = {"status": "ok", **measure(workload, rival, batch, iterations, compiled)}
    except torch.cuda.OutOfMemoryError as error:
        found = {"status": "oom", "reason": first_line(error)}
    except Exception as error:
        import traceback

        traceback.print_exc()
        found = {"status": "failed", "reason": f"{type(error).__name__}: {first_line(error)}"}
    return {**found, "machine": machine(began)}


def machine(began: float) -> dict[str, float]:
    """What it took of the machine that simulates, since then: seconds, and bytes at most."""
    host_memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return {"seconds": time.monotonic() - began, "host_bytes": host_memory}


def first_line(error: BaseException) -> str:
    """Of its message."""
    return (str(error).splitlines() or [""])[0]


def measure(
    workload: catalogue.Workload,
    rival: catalogue.Rival,
    batch: int,
    iterations: int,
    compiled: bool,
) -> dict[str, Any]:
    """Trains, and takes the mean from the fourth iteration on, of LMS from the nineteenth."""
    import simcuda
    import torch

    if ranks.is_rank():
        ranks.join()
    training = workload.build(batch, "cuda")
    if ranks.is_rank() and not rival.shards:
        from lms_bench import sharding

        sharding.shard(training)
    rival.prepare(training)
    if compiled:
        training.model.compile()
    torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        measurement = Measurement(rival.counted(iterations), Path(folder) / "timeline.jsonl")
        while not measurement.complete:
            announce_step()
            training.step()
            measurement.iteration_ended()
            if measurement.iterations == 1 and (missing := training.untrained()):
                raise RuntimeError(
                    f"{len(missing)} parameters got no gradient, such as {missing[0]}"
                )
        figures = measurement.figures()
    if unknown := simcuda.unsimulated():
        raise RuntimeError(f"kernels were not simulated: {', '.join(unknown)}")
    return figures


def announce_step() -> None:
    """Where a trace is written it shall say where iterations begin."""
    import torch

    if os.environ.get("PYTORCH_LMS_TRACE") and hasattr(torch.cuda.lms, "step"):
        torch.cuda.lms.step()


if __name__ == "__main__":
    main()
