"""Train several models on simulated devices; print how long it took as one JSON object.

Runs in the simulated device's timed mode, whose variables the caller has set. Times are virtual
nanoseconds. All but "machine" is the same in every run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from lms_bench import catalogue
from lms_bench.run_cell import first_line, machine


@dataclass
class Step:
    """A step of a model: a device, and events where it begins and ends there."""

    device: int
    begin: Any
    end: Any


_steps: defaultdict[int, list[Step]] = defaultdict(list)  # by the model's id


@dataclass
class Trained:
    """A model that is trained for so many steps."""

    workload: str
    batch: int
    number: int
    error: BaseException | None = None  # why it did not end

    @property
    def steps(self) -> list[Step]:
        """Those that it has done. A job that had events of its own would stay where it is."""
        return _steps[id(self)]

    def train(self) -> Iterator[None]:
        """Makes the model and trains it, a step at a time. Waits for nothing."""
        workload = catalogue.named("workload", catalogue.WORKLOADS, self.workload)
        training = workload.build(self.batch, "cuda")
        for _ in range(self.number):
            self.step(training)
            yield

    def step(self, training: Any) -> None:
        """A step, with events where it begins and ends."""
        import torch

        begin = event()
        training.step()
        self.steps.append(Step(torch.cuda.current_device(), begin, event()))


def event() -> Any:
    """Where the current stream is now."""
    import torch

    recorded = torch.cuda.Event(enable_timing=True)
    recorded.record()
    return recorded


def origins(devices: int) -> list[tuple[int, Any]]:
    """Of each device, which has nothing to do yet: the time, and an event."""
    import simcuda
    import torch

    found = []
    for device in range(devices):
        with torch.cuda.device(device):
            torch.cuda.synchronize()
            found.append((simcuda.virtual_time(), event()))
    return found


def span(step: Step, origins: list[tuple[int, Any]]) -> tuple[int, int, int]:
    """The device of a step, and when it began and ended there."""
    time, origin = origins[step.device]
    begin, end = (time + round(origin.elapsed_time(at) * 1e6) for at in (step.begin, step.end))
    return step.device, begin, end


def parse(text: str) -> Trained:
    """From `NAME@BATCH:STEPS`."""
    workload, _, steps = text.rpartition(":")
    name, _, batch = workload.partition("@")
    return Trained(name, int(batch), int(steps))


def in_pool(models: list[Trained], devices: int, turn_seconds: float) -> None:
    """As jobs that take turns."""
    import torch

    in_virtual_time()
    jobs = torch.cuda.lms.jobs
    pool = jobs.Pool(devices, turn_seconds=turn_seconds, progress=False)
    added = [
        pool.add(model.train, name=f"{number} {model.workload}", steps=model.number)
        for number, model in enumerate(models, 1)
    ]
    pool.run()
    for job, model in zip(added, models):
        model.error = job.exception


def in_virtual_time() -> None:
    """What threads of pools wait for is the simulated device's."""
    import simcuda
    from torch.cuda._lms_jobs import threads

    class Threads(threads.Threads):
        def __init__(self) -> None:
            self._lanes = simcuda.Lanes()

        def lock(self) -> threads.Lock:
            return self._lanes.lock()

        def closed(self) -> threads.Lock:
            return self._lanes.lock(taken=True)

        def started(self, device: int) -> None:
            self._lanes.start(device)

        def entered(self, device: int) -> None:
            self._lanes.enter(device)

        def stopped(self, device: int) -> None:
            self._lanes.stop(device)

        def together(self) -> AbstractContextManager[object]:
            return self._lanes.paused()

    threads.Threads = Threads


def one_by_one(models: list[Trained], devices: int, turn_seconds: float) -> None:
    """Each alone, one after the other, on one device."""
    for model in models:
        try:
            for _ in model.train():
                pass
        except RuntimeError as error:
            model.error = error.with_traceback(None)  # which keeps its tensors alive


WAYS: dict[str, Callable[[list[Trained], int, float], None]] = {
    "pool": in_pool,
    "one_by_one": one_by_one,
}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--turn-seconds", type=float, required=True)
    parser.add_argument("models", nargs="+", metavar="NAME@BATCH:STEPS")
    args = parser.parse_args()
    models = [parse(text) for text in args.models]
    print(json.dumps(outcome(args.way, models, args.devices, args.turn_seconds)), flush=True)


def outcome(way: str, models: list[Trained], devices: int, turn_seconds: float) -> dict[str, Any]:
    """What a cell says, also where models failed."""
    import simcuda
    import torch

    began = time.monotonic()
    from_the_start = origins(devices)
    WAYS[way](models, devices, turn_seconds)
    for device in range(devices):
        torch.cuda.synchronize(device)
    failed = [(model, model.error) for model in models if model.error is not None]
    errors = [f"{model.workload}: {first_line(error)}" for model, error in failed]
    unknown = [f"{name} was not simulated" for name in simcuda.unsimulated()]
    is_full = all(isinstance(error, torch.cuda.OutOfMemoryError) for _, error in failed)
    status = "ok" if not errors + unknown else "oom" if is_full and not unknown else "failed"
    spans = [[span(step, from_the_start) for step in model.steps] for model in models]
    return {
        "status": status,
        "reason": "; ".join([*errors, *unknown]),
        "makespan_ns": max((end for shown in spans for _, _, end in shown), default=0),
        "spans": spans,
        "paged_bytes": sum(paged(device) for device in range(devices)),
        "machine": machine(began),
    }


def paged(device: int) -> int:
    """Bytes that LMS has copied to and from a device."""
    import torch

    stats = torch.cuda.lms.stats(device)
    return int(stats["lms.page_in.bytes"] + stats["lms.page_out.bytes"])


if __name__ == "__main__":
    main()
