"""What `torch.cuda.lms.metrics` gives loggers of experiments.

It is run under chaos, where what can be made again is dropped after the operator that made it.
"""

from __future__ import annotations

import torch
from harness import TestCase, lms, numbers, page_out, raises, run_tests, skip_without_second_device

COUNT = 1 << 18  # elements
BYTES = 4 * COUNT
NAMES = {
    "page_in_bytes", "page_out_bytes", "recompute_bytes", "moved_bytes", "page_in_ms",
    "page_out_ms", "recompute_ms", "stall_demand_ms", "stall_ahead_ms", "stall_memory_ms",
    "device_bytes", "paged_out_bytes", "host_bytes", "host_limit_bytes", "limit_bytes",
}  # fmt: skip


def layer() -> torch.Tensor:
    return torch.zeros(COUNT, device="cuda")


class TestMetrics(TestCase):
    def test_names_are_the_same_each_time(self) -> None:
        for _ in range(2):
            found = lms.metrics()
            assert found.keys() == {f"lms/{name}" for name in NAMES}
            assert all(type(value) in (int, float) for value in found.values())
        assert lms.metrics(prefix="a.").keys() == {f"a.{name}" for name in NAMES}

    def test_steps_add_up_to_the_statistics(self) -> None:
        tensor = layer()
        torch.cuda.synchronize()
        lms.metrics()
        before = lms.stats()
        total = dict.fromkeys(NAMES, 0.0)
        for _ in range(3):
            page_out(tensor)
            tensor.add_(1)
            torch.cuda.synchronize()
            step = lms.metrics()
            assert step["lms/page_in_bytes"] == BYTES
            total = {name: total[name] + step[f"lms/{name}"] for name in NAMES}
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        rest = lms.metrics()
        assert rest["lms/page_in_bytes"] == 0
        after = lms.stats()
        for way in ("page_in", "page_out"):
            grown = after[f"lms.{way}.bytes"] - before[f"lms.{way}.bytes"]
            assert grown == total[f"{way}_bytes"] + rest[f"lms/{way}_bytes"] > 0
            grown = after[f"lms.{way}.us"] - before[f"lms.{way}.us"]
            self.assertAlmostEqual(grown / 1000, total[f"{way}_ms"] + rest[f"lms/{way}_ms"])
        grown = after["lms.stall.demand.us"] - before["lms.stall.demand.us"]
        self.assertAlmostEqual(grown / 1000, total["stall_demand_ms"] + rest["lms/stall_demand_ms"])

    def test_what_is_now(self) -> None:
        tensor = layer()
        with lms.pin(tensor):
            found = lms.metrics()
            assert found["lms/device_bytes"] == torch.cuda.memory_allocated() >= BYTES
        page_out(tensor)
        stats, found = lms.stats(), lms.metrics()
        assert found["lms/paged_out_bytes"] == stats["lms.paged_out_bytes.current"] >= BYTES
        assert found["lms/host_bytes"] == stats["lms.host_bytes.current"] >= BYTES
        assert found["lms/host_limit_bytes"] == lms.get_host_limit()
        assert found["lms/limit_bytes"] == torch.cuda.get_limit_lms() > 0

    def test_making_again(self) -> None:
        tensor = torch.square(numbers(COUNT).cuda())
        lms.metrics()
        tensor.sum()
        assert lms.metrics()["lms/recompute_bytes"] == BYTES

    def test_devices_apart(self) -> None:
        skip_without_second_device()
        there = numbers(COUNT).to("cuda:1")
        page_out(there)
        lms.metrics(0), lms.metrics("cuda:1")
        there.sum()
        assert lms.metrics(0)["lms/page_in_bytes"] == 0
        assert lms.metrics(torch.device("cuda:1"))["lms/page_in_bytes"] == BYTES
        raises(ValueError, lambda: lms.metrics(9), "no CUDA device 9")

    def test_while_it_is_off(self) -> None:
        torch.cuda.set_enabled_lms(False)
        try:
            lms.metrics()
            tensor = layer()
            found = lms.metrics()
        finally:
            torch.cuda.set_enabled_lms(True)
        assert found.keys() == {f"lms/{name}" for name in NAMES}
        assert found["lms/device_bytes"] >= tensor.nbytes
        assert found["lms/limit_bytes"] == found["lms/page_out_bytes"] == 0


if __name__ == "__main__":
    torch.cuda.set_enabled_lms(True)
    run_tests()
