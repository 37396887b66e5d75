"""What LMS costs per operator when everything fits and nothing has to move.

Usage: python operator_cost.py [--repeats N] [--loops N] [--report]

Times operators on tiny tensors with LMS off and on, turn by turn in one process, so that both see
the same machine; prints the best of the repeats of each, in microseconds per call. With --report,
what a report costs: LMS is on in both turns, and a report is made in the second.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator

import torch


def operators() -> dict[str, tuple[int, Callable[[], object]]]:
    """Calls by name, with how many tensors each takes as arguments."""
    a, b, c, out = (torch.randn(16, device="cuda") for _ in range(4))
    return {
        "empty": (0, lambda: torch.empty(16, device="cuda")),
        "view": (1, lambda: a.view(4, 4)),
        "neg": (1, lambda: torch.neg(a)),
        "mul_ by a number": (1, lambda: out.mul_(1.0)),
        "add": (2, lambda: torch.add(a, b)),
        "add_": (2, lambda: out.add_(a)),
        "add, out=": (3, lambda: torch.add(a, b, out=out)),
        "addcmul": (3, lambda: torch.addcmul(a, b, c)),
        "addcmul, out=": (4, lambda: torch.addcmul(a, b, c, out=out)),
    }


def microseconds_per_call(call: Callable[[], object], loops: int) -> float:
    """Mean over the loops."""
    start = time.perf_counter()
    for _ in range(loops):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / loops * 1e6


@contextlib.contextmanager
def lms(on: bool, is_reported: bool) -> Iterator[None]:
    """What is compared: LMS off and on, or LMS without and with a report."""
    torch.cuda.set_enabled_lms(on or is_reported)
    if not (on and is_reported):
        yield
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        torch.cuda.lms.report(f"{folder}/report.json"),
    ):
        yield


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--loops", type=int, default=3000)
    parser.add_argument("--report", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    calls = operators()
    best = {(name, on): float("inf") for name in calls for on in (False, True)}
    for repeat in range(arguments.repeats + 1):  # the first one warms up
        for on in (False, True):
            with lms(on, arguments.report):
                for name, (_, call) in calls.items():
                    microseconds_per_call(call, arguments.loops // 10)
                    took = microseconds_per_call(call, arguments.loops)
                    if repeat > 0:
                        best[name, on] = min(best[name, on], took)
    moved = torch.cuda.lms.stats()
    assert moved["lms.page_in.bytes"] == moved["lms.page_out.bytes"] == 0, "something moved"
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    print(
        f"{'operator':<18} {'tensors':>7} {'off, us':>8} {'on, us':>8} {'more, us':>9} {'ratio':>6}"
    )
    for name, (count, _) in calls.items():
        without, with_lms = best[name, False], best[name, True]
        more, ratio = with_lms - without, with_lms / without
        print(f"{name:<18} {count:>7} {without:>8.2f} {with_lms:>8.2f} {more:>9.2f} {ratio:>6.2f}")


if __name__ == "__main__":
    main()
