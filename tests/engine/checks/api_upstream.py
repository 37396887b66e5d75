"""LMS next to other features of torch.cuda that deal with memory."""

import pickle
import threading
from collections.abc import Callable
from typing import Any

import torch
from harness import (
    TestCase,
    assert_same,
    is_held,
    lms,
    numbers,
    page_out,
    paged_out,
    raises,
    run_tests,
)

MIB = 1 << 20


class Doubling:
    """What a graph holds for a kernel of Triton, but for the compiler."""

    arg_names = ("x", "count")

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(x: torch.Tensor, count: int) -> None:
            assert x.data_ptr() % 16 == 0 and x.numel() == count * grid[0]
            x.mul_(2)

        return launch


class TestApiUpstream(TestCase):
    def test_memory_fraction_and_limit(self) -> None:
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_limit_lms(128 * MIB)
        fraction = 64 * MIB / total
        torch.cuda.set_per_process_memory_fraction(fraction)
        assert torch.cuda.get_per_process_memory_fraction() == fraction
        assert torch.cuda.get_limit_lms() == int(fraction * total)
        tensors = [torch.full((MIB,), float(i), device="cuda") for i in range(40)]  # 160 MiB
        assert torch.cuda.memory_reserved() <= 64 * MIB
        assert [tensor[9].item() for tensor in tensors] == list(map(float, range(40)))
        torch.cuda.set_per_process_memory_fraction(1.0)
        assert torch.cuda.get_limit_lms() == 128 * MIB
        raises((ValueError, RuntimeError), lambda: torch.cuda.set_per_process_memory_fraction(2.0))
        half = 128 * MIB / total
        torch.cuda.set_per_process_memory_fraction(half)
        del tensors
        torch.cuda.set_enabled_lms(False)
        assert torch.cuda.get_per_process_memory_fraction() == half
        torch.cuda.empty_cache()
        raises(
            torch.cuda.OutOfMemoryError,
            lambda: torch.empty(140 * MIB, dtype=torch.uint8, device="cuda"),
        )
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.empty(140 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.set_limit_lms(0)
        torch.cuda.empty_cache()
        torch.cuda.set_enabled_lms(True)

    def test_memory_history(self) -> None:
        torch.cuda.set_limit_lms(48 * MIB)
        torch.cuda.memory._record_memory_history(context="all", stacks="python")
        try:
            tensors = [torch.full((MIB,), float(i), device="cuda") for i in range(20)]
            values = [(tensor * 2)[3].item() for tensor in tensors]
            page_out(tensors[0])
            snapshot = torch.cuda.memory._snapshot()
        finally:
            torch.cuda.memory._record_memory_history(None)
        assert values == [2.0 * i for i in range(20)]
        assert torch.cuda.memory_reserved() <= 48 * MIB
        assert snapshot["segments"] and any(snapshot["device_traces"])
        assert pickle.loads(pickle.dumps(snapshot))["segments"] == snapshot["segments"]
        torch.cuda.set_limit_lms(0)

    def test_memory_snapshot(self) -> None:
        tensor = torch.ones(3 * MIB, device="cuda")
        with lms.pin(tensor):
            active = sum(
                block["size"]
                for segment in torch.cuda.memory_snapshot()
                for block in segment["blocks"]
                if block["state"] == "active_allocated"
            )
            assert active == torch.cuda.memory_allocated() >= tensor.nbytes
        page_out(tensor)
        assert torch.cuda.memory_allocated() < active
        assert_same(tensor[:5], torch.ones(5))

    def test_empty_cache_after_paging_out(self) -> None:
        tensor = torch.ones(3 * MIB, device="cuda")
        page_out(tensor)
        torch.cuda.empty_cache()
        reserved = torch.cuda.memory_reserved()
        assert_same(tensor[:5], torch.ones(5))
        assert torch.cuda.memory_reserved() > reserved

    def test_memory_pool_is_left_alone(self) -> None:
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            private = numbers(1000).cuda()
            doubled = private * 2
        public = numbers(1000).cuda()
        page_out(public)
        assert lms.is_resident(private) and lms.is_resident(doubled)
        assert_same(doubled + public, numbers(1000) * 3)
        address = private.data_ptr()
        torch.cuda.reclaim_inactive()
        assert private.data_ptr() == address
        assert_same(private, numbers(1000))

    def test_operators_inside_a_memory_pool_page_in_outside(self) -> None:
        public = numbers(100_000).cuda()
        page_out(public)
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            private = public * 2
            assert_same(private, numbers(100_000) * 2)
        segments = [s for s in torch.cuda.memory_snapshot() if s["segment_pool_id"] == pool.id]
        assert sum(s["allocated_size"] for s in segments) == private.nbytes // 512 * 512 + 512
        page_out(public)
        assert lms.is_resident(private)
        assert_same(public, numbers(100_000))

    def test_operators_that_keep_the_state_of_random_numbers(self) -> None:
        from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state

        tensor = numbers(1000).cuda()
        dropout = torch.ops.aten.native_dropout.default
        page_out(tensor)
        with torch._C._AutoDispatchBelowAutograd():  # as graphs call them
            state, first = run_and_save_rng_state(dropout, tensor, 0.5, True)
            page_out(tensor, *first)
            second = run_with_rng_state(state, dropout, tensor, 0.5, True)
        for one, other in zip(first, second, strict=True):
            assert_same(one, other)

    def test_caching_allocator_functions(self) -> None:
        address = torch.cuda.caching_allocator_alloc(4096)
        torch.cuda.reclaim_inactive()
        torch.cuda.caching_allocator_delete(address)
        assert torch.cuda.memory.get_allocator_backend() == "native"
        assert torch.cuda.memory_allocated() >= 0 and torch.cuda.max_memory_allocated() > 0
        torch.cuda.reset_accumulated_memory_stats()
        torch.cuda.ipc_collect()
        assert torch.cuda.list_gpu_processes is not None
        assert "native" in str(torch.cuda.memory.get_allocator_backend())
        assert torch.cuda.host_memory_stats() is not None

    def test_streams(self) -> None:
        data = numbers(50_000)
        tensor = data.cuda()
        streams = [torch.cuda.Stream() for _ in range(3)]
        results = []
        for stream in streams:
            page_out(tensor)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                results.append(tensor * 2)
                tensor.record_stream(stream)
        torch.cuda.synchronize()
        for result in results:
            assert_same(result, data * 2)
        with torch.cuda.stream(streams[0]):
            made = data.cuda()
        streams[1].wait_stream(streams[0])
        page_out(made)
        with torch.cuda.stream(streams[1]):
            total = made.sum()
        streams[1].synchronize()
        assert total.item() == data.cuda().sum().item()
        assert not is_held(made)

    def test_events_and_timing(self) -> None:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        tensor = numbers(100).cuda()
        page_out(tensor)
        tensor.add_(1)
        end.record()
        torch.cuda.synchronize()
        assert start.elapsed_time(end) >= 0

    def test_pinned_host_tensors(self) -> None:
        locked = numbers(1000).pin_memory()
        assert locked.is_pinned()
        tensor = locked.to("cuda", non_blocking=True)
        page_out(tensor)
        assert_same(tensor, numbers(1000))

    def test_profiler_sees_the_operators(self) -> None:
        tensor = numbers(100).cuda()
        page_out(tensor)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            tensor.add(1)
        assert any(event.key == "aten::add" for event in profile.key_averages())

    def test_function_transforms(self) -> None:
        weight, x = numbers(4, 4).cuda(), numbers(3, 4).cuda()
        page_out(weight, x)
        expected = torch.func.vmap(lambda row: numbers(4, 4) @ row)(numbers(3, 4))
        assert_same(torch.func.vmap(lambda row: weight @ row)(x), expected)
        page_out(weight, x)
        gradient = torch.func.grad(lambda w: (w * w).sum())(weight)
        page_out(gradient)
        assert_same(gradient, numbers(4, 4) * 2)
        jacobian = torch.func.jacrev(lambda v: v * v)(x[0].contiguous())
        page_out(jacobian)
        assert_same(jacobian, torch.diag(numbers(3, 4)[0] * 2))

    def test_modes(self) -> None:
        from torch.utils._python_dispatch import TorchDispatchMode

        class Names(TorchDispatchMode):
            def __init__(self) -> None:
                super().__init__()
                self.seen: list[str] = []

            def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore
                self.seen.append(str(func))
                return func(*args, **(kwargs or {}))

        tensor = numbers(10).cuda()
        page_out(tensor)
        with Names() as names:
            result = tensor + 1
        assert names.seen == ["aten.add.Tensor"]
        assert_same(result, numbers(10) + 1)
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode(allow_non_fake_inputs=True):
            fake = torch.empty(1 << 40, device="cuda") + 1
        assert fake.shape == (1 << 40,)
        with torch.device("meta"):
            assert torch.empty(1 << 40).device.type == "meta"

    def test_custom_operators_registered_later(self) -> None:
        @torch.library.custom_op("behaviour::twice", mutates_args=())
        def twice(x: torch.Tensor) -> torch.Tensor:
            return x.mul(2)

        library = torch.library.Library("behaviour", "FRAGMENT")
        library.define("thrice(Tensor x) -> Tensor")
        library.impl("thrice", lambda x: x * 3, "CUDA")
        tensor = numbers(10).cuda()
        page_out(tensor)
        assert_same(twice(tensor), numbers(10) * 2)
        page_out(tensor)
        assert_same(torch.ops.behaviour.thrice(tensor), numbers(10) * 3)
        assert not is_held(tensor)

    def test_kernels_of_triton_in_graphs(self) -> None:
        from torch._higher_order_ops import triton_kernel_wrap

        table = triton_kernel_wrap.kernel_side_table
        wrapped: dict[str, Any] = {
            "kernel_idx": table.add_kernel(Doubling()),  # type: ignore[arg-type]
            "constant_args_idx": table.add_constant_args({"count": 10}),
            "grid": [(1,)],
            "tma_descriptor_metadata": {},
        }
        tensor = paged_out(numbers(10))
        triton_kernel_wrap.triton_kernel_wrapper_mutation(**wrapped, kwargs={"x": tensor})
        assert_same(tensor, numbers(10) * 2)
        tensor = paged_out(numbers(10))
        made = triton_kernel_wrap.triton_kernel_wrapper_functional(
            **wrapped, kwargs={"x": tensor}, tensors_to_clone=["x"]
        )
        assert_same(made["x"], numbers(10) * 2)
        assert_same(tensor, numbers(10))

    def test_operators_that_take_functions_after_lms(self) -> None:
        """A thread keeps what LMS set for it when another one turns LMS off."""
        began, is_off = threading.Event(), threading.Event()
        results = []

        def work() -> None:
            tensor = numbers(10).cuda()
            began.set()
            is_off.wait()
            results.append(torch.cond(tensor.sum() > 0, torch.sin, torch.cos, (tensor,)))

        thread = threading.Thread(target=work)
        thread.start()
        began.wait()
        torch.cuda.set_enabled_lms(False)
        is_off.set()
        thread.join()
        torch.cuda.set_enabled_lms(True)
        (result,) = results
        assert_same(result, numbers(10).cuda().sin())

    def test_script_and_trace(self) -> None:
        def function(x: torch.Tensor) -> torch.Tensor:
            return x * 2 + 1

        tensor = numbers(10).cuda()
        torch._C._jit_set_texpr_fuser_enabled(False)  # it compiles kernels: not simulated
        for compiled in (torch.jit.script(function), torch.jit.trace(function, (tensor,))):
            page_out(tensor)
            assert_same(compiled(tensor), numbers(10) * 2 + 1)

    def test_inference_mode_and_no_grad(self) -> None:
        tensor = numbers(10).cuda()
        for context in (torch.inference_mode, torch.no_grad):
            with context():
                page_out(tensor)
                made = tensor * 2
                page_out(made)
                made.add_(1)
                assert_same(made, numbers(10) * 2 + 1)

    def test_data_parallel_helpers(self) -> None:
        tensor = numbers(10, 4).cuda()
        page_out(tensor)
        flat = torch._utils._flatten_dense_tensors([tensor, tensor])
        assert_same(flat, torch.cat([numbers(40), numbers(40)]))
        norm = torch.nn.utils.clip_grad_norm_
        parameter = torch.nn.Parameter(numbers(10).cuda())
        parameter.grad = numbers(10).cuda()
        expected = torch.nn.Parameter(numbers(10))
        expected.grad = numbers(10)
        page_out(parameter, parameter.grad)
        assert_same(norm([parameter], 1.0), norm([expected], 1.0))
        page_out(parameter.grad)
        assert_same(parameter.grad, expected.grad)


if __name__ == "__main__":
    torch.cuda.set_enabled_lms(True)
    run_tests()
