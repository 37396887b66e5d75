"""Where profilers and memory snapshots show paging.

Also run under chaos, where what can be made again is dropped after the operator that made it.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import tempfile
import unittest
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from harness import (
    TestCase,
    lms,
    numbers,
    page_out,
    paged_out,
    raises,
    run_tests,
    skip_without_second_device,
)
from torch.cuda import _memory_viz
from torch.profiler import ProfilerActivity, profile

COUNT = 1 << 18  # elements
BYTES = 4 * COUNT
IS_CHAOS = os.environ.get("PYTORCH_LMS") == "chaos"
under_chaos = unittest.skipUnless(IS_CHAOS, "what is dropped is certain under chaos only")
without_chaos = unittest.skipIf(IS_CHAOS, "nothing stays on the device under chaos")


def layer() -> torch.Tensor:
    return torch.zeros(COUNT, device="cuda")


def profiled() -> profile:
    return profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True)


def dropped() -> torch.Tensor:
    """A tensor whose bytes are nowhere, under chaos."""
    return torch.square(numbers(COUNT).cuda())


def places(snapshot: dict[str, Any], device: int = 0) -> dict[str, list[int]]:
    """Sizes of a device's storages that are not on it alone, by the type of their segment."""
    found = defaultdict(list)
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            if segment["segment_type"].startswith("lms_"):
                name = block["frames"][0]["name"]
                if f" of cuda:{device} " in name:
                    found[segment["segment_type"]].append(block["size"])
    return dict(found)


class TestProfile(TestCase):
    @without_chaos
    def test_spans(self) -> None:
        tensor = layer()
        with profiled() as run:
            page_out(tensor)
            tensor.sum()
        spans = {event.name: event for event in run.events()}
        assert spans["lms::page_in"].concrete_inputs == [BYTES]
        assert spans["lms::page_in"].cpu_parent.name == "aten::sum"
        assert [COUNT] in spans["lms::page_in"].cpu_parent.input_shapes
        assert spans["lms::page_out"].concrete_inputs == [BYTES]

    @under_chaos
    def test_span_of_making_again(self) -> None:
        tensor = dropped()
        with profiled() as run:
            tensor.sum()
        spans = [event for event in run.events() if event.name == "lms::recompute"]
        assert [span.concrete_inputs for span in spans] == [[BYTES]]

    def test_spans_in_an_exported_trace(self) -> None:
        tensor = paged_out(numbers(COUNT))
        with profiled() as run:
            tensor.sum()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "trace.json")
            run.export_chrome_trace(str(file))
            events = json.loads(file.read_text())["traceEvents"]
        spans = [event for event in events if event.get("name") == "lms::page_in"]
        assert [span["args"]["Concrete Inputs"] for span in spans] == [[str(BYTES)]]
        assert all(span["dur"] > 0 for span in spans)

    def test_access_is_checked_again_after_it(self) -> None:
        tensor = layer()
        with profiled():
            tensor.sum()
        unhooked = torch.UntypedStorage.data_ptr.__wrapped__
        raises(RuntimeError, lambda: unhooked(tensor.untyped_storage()), "Large Model Support")


class TestSnapshot(TestCase):
    def setUp(self) -> None:
        super().setUp()
        gc.collect()

    def test_spans(self) -> None:
        tensor = layer()
        torch.cuda.memory._record_memory_history(global_record_annotations=True)
        try:
            page_out(tensor)
            tensor.add_(1)
            page_out(tensor)
            found = torch.cuda.memory._snapshot()["external_annotations"]
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)
        stages = {(note["name"], note["stage"]) for note in found}
        for name in ("lms::page_out", "lms::page_in"):
            assert {(name, "START"), (name, "END")} <= stages, stages

    def test_what_is_on_the_host(self) -> None:
        first, second = paged_out(numbers(COUNT)), paged_out(numbers(2 * COUNT))
        page_out(first, second)
        found = places(torch.cuda.memory._snapshot())["lms_paged_out"]
        assert {first.nbytes, second.nbytes} <= set(found)
        assert sum(found) == lms.stats()["lms.paged_out_bytes.current"]

    @without_chaos
    def test_what_is_on_the_host_too(self) -> None:
        tensor = paged_out(numbers(3 * COUNT))
        tensor.sum()
        assert places(torch.cuda.memory._snapshot())["lms_host_copy"].count(tensor.nbytes) == 1
        tensor.add_(1)
        assert tensor.nbytes not in places(torch.cuda.memory._snapshot()).get("lms_host_copy", [])

    @under_chaos
    def test_what_is_made_again(self) -> None:
        before = places(torch.cuda.memory._snapshot()).get("lms_dropped", [])
        tensor = dropped()
        after = places(torch.cuda.memory._snapshot())["lms_dropped"]
        assert len(after) == len(before) + 1 and tensor.nbytes in after

    def test_it_is_what_upstream_tools_read(self) -> None:
        """The segments are well-formed, and pickled in what the viewer on the web can read."""
        tensors = [numbers(size * COUNT).cuda() for size in (1, 2, 3)]
        page_out(*tensors)
        tensors[0].sum()  # so there are two segments, but under chaos
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "snapshot.pickle")
            torch.cuda.memory._dump_snapshot(str(file))
            snapshot = pickle.loads(file.read_bytes())
        for segment in snapshot["segments"]:
            assert segment["device"] < len(snapshot["device_traces"])
            assert segment["address"] + segment["total_size"] < 1 << 53
            sizes = [block["size"] for block in segment["blocks"]]
            begins = [block["address"] - segment["address"] for block in segment["blocks"]]
            assert sum(sizes) == segment["total_size"]
            assert begins == [sum(sizes[:count]) for count in range(len(sizes))]
        ranges = sorted((s["address"], s["total_size"]) for s in snapshot["segments"])
        assert all(one + size <= next_ for (one, size), (next_, _) in pairwise(ranges))
        for show in ("segsum", "trace", "trace_plot", "segment_plot"):
            getattr(_memory_viz, show)(snapshot)
        for show in ("segments", "memory"):
            lines = getattr(_memory_viz, show)(snapshot, lambda text: text)
            assert "of cuda:0 is in host memory only" in lines

    def test_sums_over_the_device_stay(self) -> None:
        tensor = paged_out(numbers(COUNT))
        with lms.pin(layer()):
            allocated = sum(
                segment["allocated_size"]
                for segment in torch.cuda.memory._snapshot()["segments"]
                if segment["device"] == 0
            )
            assert allocated == torch.cuda.memory_allocated(0)
        del tensor

    def test_devices_apart(self) -> None:
        skip_without_second_device()
        here = paged_out(numbers(5 * COUNT))
        there = numbers(7 * COUNT).to("cuda:1")
        page_out(here, there)
        snapshot = torch.cuda.memory._snapshot()
        assert here.nbytes in places(snapshot, 0)["lms_paged_out"]
        assert places(snapshot, 1)["lms_paged_out"] == [there.nbytes]
        devices = {s["device"] for s in snapshot["segments"] if s["segment_type"][:4] == "lms_"}
        count = torch.cuda.device_count()
        assert devices == {count, count + 1}
        assert len(snapshot["device_traces"]) == count + 2

    def test_without_lms_it_is_upstreams(self) -> None:
        tensor = paged_out(numbers(COUNT))
        assert places(torch.cuda.memory._snapshot())
        torch.cuda.set_enabled_lms(False)
        try:
            assert not hasattr(torch.cuda.memory._snapshot, "__wrapped__")
            snapshot = torch.cuda.memory._snapshot()
            assert snapshot["segments"] == torch.cuda.memory_snapshot()
            assert len(snapshot["device_traces"]) == torch.cuda.device_count()
        finally:
            torch.cuda.set_enabled_lms(True)
        del tensor


if __name__ == "__main__":
    torch.cuda.set_enabled_lms(True)
    run_tests()
