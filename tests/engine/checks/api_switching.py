"""Turning LMS on and off: before or after anything exists, many times, from several threads."""

import threading

import torch
from harness import (
    TestCase,
    assert_same,
    in_thread,
    is_held,
    lms,
    numbers,
    page_out,
    paged_out,
    raises,
    run_tests,
    skip_with_much_memory,
    skip_without_second_device,
)
from torch import nn
from torch._subclasses import FakeTensorMode

MIB = 1 << 20
BELOW_LMS = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("FPGA"))


def hooked_methods() -> list[object]:
    storage = torch.UntypedStorage
    return [
        torch.Tensor.data_ptr, torch.Tensor.__dlpack__, torch.utils.dlpack.to_dlpack,
        torch.to_dlpack, threading.Thread.start,
        *[getattr(storage, name, None) for name in dir(storage) if not name.startswith("__")],
    ]  # fmt: skip


UPSTREAMS = hooked_methods()


def moved() -> int:
    stats = lms.stats()
    return stats["lms.page_in.bytes"] + stats["lms.page_out.bytes"]


def upstream_stats() -> dict[str, int]:
    flat: dict[str, int] = {}

    def add(prefix: str, value: object) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{prefix}.{key}" if prefix else key, inner)
        else:
            flat[prefix] = value

    add("", torch._C._cuda_memoryStats(0))
    return flat


class TestApiSwitching(TestCase):
    def test_first_of_all_nothing_is_loaded(self) -> None:
        """Runs first: LMS not in use shows upstream's statistics and no others."""
        numbers(4).cuda()
        assert not torch.cuda.get_enabled_lms()
        stats = torch.cuda.memory_stats()
        assert stats and not [n for n in stats if "lms" in n or "reclaimed" in n or "pinned" in n]
        assert stats == upstream_stats()
        assert "LMS" not in torch.cuda.memory_summary()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reclaim_inactive()
        with open("/proc/self/maps") as maps:
            assert "libtorch_lms" not in maps.read()

    def test_enable_after_the_model_exists(self) -> None:
        torch.manual_seed(0)
        model = nn.Linear(64, 64).cuda()
        x = numbers(8, 64).cuda() / 251
        expected = model(x).cpu()
        torch.cuda.set_enabled_lms(True)
        assert torch.cuda.get_enabled_lms()
        assert_same(model(x), expected)
        page_out(model.weight, x)
        assert_same(model(x), expected)
        torch.cuda.set_enabled_lms(False)
        assert not torch.cuda.get_enabled_lms()
        assert_same(model(x), expected)

    def test_enable_after_a_graph_was_captured(self) -> None:
        """It has the addresses of what it uses."""
        x = torch.ones(1 << 20, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 1
        torch.cuda.set_enabled_lms(True)
        torch.cuda.reclaim_inactive()
        others = torch.full((1 << 20,), 7.0, device="cuda")  # where x would have been
        graph.replay()
        assert y.eq(2).all()
        assert others.eq(7).all()

    def test_enable_with_fake_tensors(self) -> None:
        """They say that they are on the device, and torch.compile leaves some behind."""
        with FakeTensorMode():
            fake = torch.ones(MIB, device="cuda")
        assert fake.device.type == "cuda"
        torch.cuda.set_enabled_lms(True)
        assert lms.stats()["lms.managed.all.current"] == 0
        torch.cuda.set_enabled_lms(False)

    def test_disabling_undoes_everything(self) -> None:
        torch.cuda.set_enabled_lms(True)
        assert torch.Tensor.data_ptr is not UPSTREAMS[0]
        hosts = [numbers(1000 + i) for i in range(20)]
        tensors = [host.cuda() for host in hosts]
        page_out(*tensors)
        held = tensors[3].data_ptr()
        torch.cuda.set_enabled_lms(False)
        for now, before in zip(hooked_methods(), UPSTREAMS, strict=True):
            assert now == before, f"{now} is not upstream's"
        assert tensors[3].data_ptr() == held
        moved_then = moved()
        for tensor, host in zip(tensors, hosts, strict=True):
            assert tensor.data_ptr() != 0
            assert_same(tensor, host)
            assert lms.is_resident(tensor)
        stats = lms.stats()
        assert stats["lms.managed.all.current"] == 0, stats["lms.managed.all.current"]
        assert stats["pinned.all.current"] == 0, stats["pinned.all.current"]
        assert stats["lms.host_bytes.current"] == 0 and stats["lms.host_bytes.reserved"] == 0
        torch.cuda.reclaim_inactive()
        assert moved() == moved_then

    def test_disabling_restores_the_allocator(self) -> None:
        skip_with_much_memory()
        fraction = torch.cuda.get_per_process_memory_fraction()
        torch.cuda.set_enabled_lms(True)
        torch.cuda.set_limit_lms(64 * MIB)
        torch.cuda.set_enabled_lms(False)
        assert torch.cuda.get_per_process_memory_fraction() == fraction
        big = torch.empty(128 * MIB, dtype=torch.uint8, device="cuda")  # more than LMS's limit
        assert torch.cuda.memory_allocated() >= 128 * MIB
        del big
        torch.cuda.empty_cache()
        assert torch.cuda.memory.get_allocator_backend() == "native"
        message = raises(
            torch.cuda.OutOfMemoryError,
            lambda: torch.empty(512 * MIB, dtype=torch.uint8, device="cuda"),
        )
        assert "Large Model Support" not in message
        torch.cuda.set_limit_lms(0)

    def test_limit_set_while_off_counts_when_on(self) -> None:
        torch.cuda.set_limit_lms(64 * MIB)
        try:
            torch.empty(128 * MIB, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError:
            torch.cuda.set_limit_lms(0)
            raise
        torch.cuda.empty_cache()
        torch.cuda.set_enabled_lms(True)
        assert torch.cuda.get_limit_lms() == 64 * MIB
        raises(
            torch.cuda.OutOfMemoryError,
            lambda: torch.empty(128 * MIB, dtype=torch.uint8, device="cuda"),
            "limit 64.00 MiB",
        )
        torch.cuda.set_enabled_lms(False)
        torch.cuda.set_limit_lms(0)

    def test_disabling_that_does_not_fit_changes_nothing(self) -> None:
        skip_with_much_memory()
        torch.cuda.empty_cache()
        torch.cuda.set_enabled_lms(True)
        hosts = [torch.full((8 * MIB,), float(i)) for i in range(12)]  # 32 MiB each, 384 in all
        tensors = [host.cuda() for host in hosts]
        for _ in range(2):
            message = raises(
                torch.cuda.OutOfMemoryError, lambda: torch.cuda.set_enabled_lms(False), "stays on"
            )
            assert "reclaimable" in message
            assert torch.cuda.get_enabled_lms()
            assert torch.Tensor.data_ptr is not UPSTREAMS[0]
            for tensor, host in zip(tensors, hosts, strict=True):
                assert_same(tensor * 2, host * 2)
        page_out(*tensors)
        del tensors[2:], tensor
        torch.cuda.set_enabled_lms(False)
        for tensor, host in zip(tensors, hosts[:2], strict=True):
            assert_same(tensor, host)

    def test_many_switches(self) -> None:
        tensors = [numbers(5000).cuda() for _ in range(5)]
        for round_ in range(30):
            torch.cuda.set_enabled_lms(True)
            for tensor in tensors:
                tensor.add_(1)
            if round_ % 2:
                page_out(*tensors)
            torch.cuda.set_enabled_lms(False)
            tensors[round_ % 5].add_(1)
        for tensor in tensors:
            assert_same(tensor, numbers(5000) + 36)
        torch.cuda.set_enabled_lms(True)
        torch.cuda.set_enabled_lms(True)
        page_out(*[tensor.add_(1) for tensor in tensors])
        torch.cuda.set_enabled_lms(False)
        torch.cuda.set_enabled_lms(False)
        assert lms.stats()["lms.managed.all.current"] == 0

    def test_tensors_freed_after_disabling(self) -> None:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.set_enabled_lms(True)
        tensors = [numbers(5000).cuda() for _ in range(5)]
        page_out(*tensors)
        torch.cuda.set_enabled_lms(False)
        tensors.clear()
        assert torch.cuda.memory_allocated() == before

    def test_backward_across_a_switch(self) -> None:
        x = numbers(64).cuda().requires_grad_()
        torch.cuda.set_enabled_lms(True)
        loss = (x.sin() * 0 + x * x).sum()
        torch.cuda.reclaim_inactive()
        torch.cuda.set_enabled_lms(False)
        loss.backward()
        assert_same(x.grad, numbers(64) * 2)
        x.grad = None
        loss = (x * x).sum()
        torch.cuda.set_enabled_lms(True)
        loss.backward()
        page_out(x.grad)
        torch.cuda.set_enabled_lms(False)
        assert_same(x.grad, numbers(64) * 2)

    def test_fits_moves_nothing(self) -> None:
        torch.cuda.set_enabled_lms(True)
        before = moved()
        model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.randn(16, 256, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert moved() == before
        torch.cuda.set_enabled_lms(False)

    def test_threads_started_later_are_covered(self) -> None:
        torch.cuda.set_enabled_lms(True)
        tensor = numbers(64).cuda()

        def work() -> None:
            page_out(tensor)
            assert_same(tensor * 2, numbers(64) * 2)
            made = numbers(9).cuda()
            page_out(made)
            x = numbers(5).cuda().requires_grad_()
            (x * x).sum().backward()
            page_out(x.grad)
            assert_same(x.grad, numbers(5) * 2)

        in_thread(work)
        in_thread(lambda: in_thread(work))

        class Own(threading.Thread):
            def run(self) -> None:
                self.result = (tensor + 1).cpu()

        page_out(tensor)
        own = Own()
        own.start()
        own.join()
        assert_same(own.result, numbers(64) + 1)
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(2) as pool:
            page_out(tensor)
            for result in pool.map(lambda i: (tensor * i).cpu(), range(4)):
                assert result.shape == (64,)
        torch.cuda.set_enabled_lms(False)

    def test_threads_started_before(self) -> None:
        tensor = numbers(64).cuda()
        turn = [threading.Event() for _ in range(2)]
        outcome: list[object] = []

        def work() -> None:
            turn[0].wait()
            try:
                outcome.append((tensor * 2).cpu())
            except RuntimeError as error:
                outcome.append(str(error))
            lms.enable_thread()
            outcome.append((tensor * 2).cpu())
            turn[1].set()

        thread = threading.Thread(target=work)
        thread.start()
        torch.cuda.set_enabled_lms(True)
        tensor.add_(1)
        page_out(tensor)
        turn[0].set()
        thread.join()
        first, second = outcome
        # Never wrong numbers: the right ones, or an error that says what to call.
        if isinstance(first, str):
            assert "enable_thread" in first, first
        else:
            assert_same(first, (numbers(64) + 1) * 2)
        assert_same(second, (numbers(64) + 1) * 2)
        torch.cuda.set_enabled_lms(False)

    def test_a_thread_outlives_lms(self) -> None:
        torch.cuda.set_enabled_lms(True)
        tensor = numbers(64).cuda()
        off = threading.Event()
        results: list[torch.Tensor] = []

        def work() -> None:
            results.append((tensor * 2).cpu())
            off.wait()
            results.append((tensor * 3).cpu())

        thread = threading.Thread(target=work)
        thread.start()
        while not results and thread.is_alive():
            pass
        torch.cuda.set_enabled_lms(False)
        off.set()
        thread.join()
        assert_same(results[1], numbers(64) * 3)

    def test_switching_while_threads_compute(self) -> None:
        stop = threading.Event()
        errors: list[str] = []

        def work(seed: int) -> None:
            torch.cuda.set_device(0)
            data = numbers(2000) + seed
            tensor = data.cuda()
            while not stop.is_set():
                try:
                    assert_same(tensor * 2 + 1, data * 2 + 1)
                except BaseException as error:
                    errors.append(f"{type(error).__name__}: {error}")
                    return

        torch.cuda.set_enabled_lms(True)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(15):
            torch.cuda.reclaim_inactive()
            torch.cuda.set_enabled_lms(False)
            torch.cuda.set_enabled_lms(True)
        stop.set()
        for thread in threads:
            thread.join()
        torch.cuda.set_enabled_lms(False)
        assert not errors, errors[0]

    def test_enabling_waits_for_operators_under_way(self) -> None:
        """One that began before LMS was turned off finds its storages where they were."""
        is_inside, may_end, is_enabled = (threading.Event() for _ in range(3))
        library = torch.library.Library("switching", "FRAGMENT")
        library.define("slow(Tensor x) -> Tensor")

        def slow(x: torch.Tensor) -> torch.Tensor:
            is_inside.set()
            may_end.wait()
            with torch._C._ExcludeDispatchKeyGuard(BELOW_LMS):  # as a kernel in C++ takes addresses
                return x + 1

        library.impl("slow", slow, "CUDA")
        results: list[object] = []

        def run() -> None:
            try:
                results.append(torch.ops.switching.slow(tensor))
            except Exception as error:
                results.append(error)

        def enable() -> None:
            torch.cuda.set_enabled_lms(True)
            is_enabled.set()

        torch.cuda.set_enabled_lms(True)
        tensor = numbers(2000).cuda()
        threads = [threading.Thread(target=run), threading.Thread(target=enable)]
        threads[0].start()
        is_inside.wait()
        torch.cuda.set_enabled_lms(False)
        threads[1].start()
        came_early = is_enabled.wait(0.2)
        may_end.set()
        for thread in threads:
            thread.join()
        lms.enable_thread()
        assert not came_early
        assert isinstance(results[0], torch.Tensor), results[0]
        assert_same(results[0], numbers(2000) + 1)
        assert not is_held(tensor)
        torch.cuda.set_enabled_lms(False)

    def test_what_is_pinned_stays_through_a_switch(self) -> None:
        torch.cuda.set_enabled_lms(True)
        tensor = paged_out(numbers(2000))
        with lms.pin(tensor):
            torch.cuda.set_enabled_lms(False)
            torch.cuda.set_enabled_lms(True)
            torch.cuda.reclaim_inactive()
            assert lms.is_resident(tensor)
            assert_same(tensor * 2, numbers(2000) * 2)
            torch.cuda.reclaim_inactive()
            assert lms.is_resident(tensor)
        assert_same(tensor * 2, numbers(2000) * 2)
        assert not is_held(tensor)
        torch.cuda.set_enabled_lms(False)

    def test_device_attribute_of_both_devices(self) -> None:
        skip_without_second_device()
        torch.cuda.set_enabled_lms(True)
        tensors = [numbers(64).to(f"cuda:{i}") for i in range(2)]
        page_out(*tensors)
        assert_same(tensors[1] * 2, numbers(64) * 2)
        page_out(*tensors)
        assert_same(tensors[0].to("cuda:1") + tensors[1], numbers(64) * 2)
        assert not any(is_held(tensor) for tensor in tensors)
        torch.cuda.set_enabled_lms(False)
        assert_same(tensors[1], numbers(64))


if __name__ == "__main__":
    run_tests()
