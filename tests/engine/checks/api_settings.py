"""Names, settings, statistics and errors of the Python interface."""

import inspect
import logging

import torch
from harness import (
    TestCase,
    is_held,
    lms,
    numbers,
    page_out,
    paged_out,
    raises,
    run_tests,
    skip_without_second_device,
)

MIB = 1 << 20


class TestApiSettings(TestCase):
    def test_names_of_the_original(self) -> None:
        for name in (
            "set_enabled_lms", "get_enabled_lms", "set_limit_lms", "get_limit_lms", "set_size_lms",
            "get_size_lms", "reclaim_inactive",
        ):  # fmt: skip
            function = getattr(torch.cuda, name)
            assert name in torch.cuda.__all__ and name in lms.__all__
            assert function is getattr(lms, name)
        for name in lms.__all__:
            function = getattr(lms, name)
            assert function.__module__ == "torch.cuda.lms"
            assert inspect.getdoc(function), f"{name} has no docstring"
        assert "lms" in torch.cuda.__all__
        assert sorted(lms.__all__) == list(lms.__all__)

    def test_signatures(self) -> None:
        def parameters(function: object) -> str:
            return ", ".join(inspect.signature(function).parameters)

        assert parameters(torch.cuda.set_enabled_lms) == "enabled"
        assert parameters(torch.cuda.set_limit_lms) == "limit, device"
        assert parameters(torch.cuda.get_limit_lms) == "device"
        assert parameters(torch.cuda.set_size_lms) == "size"
        assert parameters(torch.cuda.get_size_lms) == ""
        assert parameters(torch.cuda.reclaim_inactive) == ""
        assert parameters(lms.pin) == "tensors"
        assert parameters(lms.stats) == "device"
        assert parameters(lms.step) == ""
        assert inspect.signature(lms.stats).parameters["device"].default is None

    def test_docstrings_name_units_and_errors(self) -> None:
        assert "bytes" in lms.set_limit_lms.__doc__ and "95 %" in lms.set_limit_lms.__doc__
        assert "bytes" in lms.set_size_lms.__doc__ and "bytes" in lms.set_host_limit.__doc__
        assert "Raises" in lms.set_enabled_lms.__doc__ and "Raises" in lms.pin.__doc__

    def test_logger(self) -> None:
        assert isinstance(lms.logger, logging.Logger)
        assert lms.logger.name == "torch.cuda.lms"
        records: list[str] = []

        class Keep(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                records.append(record.getMessage())

        handler = Keep()
        lms.logger.addHandler(handler)
        lms.logger.setLevel(logging.INFO)
        was = torch.cuda.get_enabled_lms()
        torch.cuda.set_enabled_lms(not was)
        torch.cuda.set_enabled_lms(was)
        lms.logger.removeHandler(handler)
        lms.logger.setLevel(logging.NOTSET)
        assert sorted(records) == ["disabled", "enabled"]

    def test_is_available(self) -> None:
        assert lms.is_available() is True

    def test_wrong_input(self) -> None:
        for function in (torch.cuda.set_limit_lms, torch.cuda.set_size_lms, lms.set_host_limit):
            for value in (True, "1G", 1.5, None, [1]):
                raises(
                    TypeError, lambda f=function, v=value: f(v), "int (bytes)", type(value).__name__
                )
            raises(ValueError, lambda f=function: f(-1), "-1")
            raises(
                (ValueError, OverflowError),
                lambda f=function: f(1 << 70),
                "got 1180591620717411303424",
            )
        for call in (
            lms.get_limit_lms,
            lms.stats,
            lambda device: lms.set_limit_lms(1 << 20, device),
        ):
            for device in (7, torch.device("cuda", 7), -3):
                message = raises(
                    (RuntimeError, ValueError), lambda c=call, d=device: c(d), "device"
                )
                assert "INTERNAL ASSERT" not in message and len(message.splitlines()) == 1, message
            raises(ValueError, lambda c=call: c("cpu"), "cpu")
        raises(TypeError, lambda: torch.cuda.set_enabled_lms("off"), "'off'")
        raises(TypeError, lambda: lms.is_resident(3), "int")
        raises(TypeError, lambda: lms.pin(3).__enter__(), "int")
        # Nothing of it was kept.
        assert torch.cuda.get_limit_lms() > 0 and torch.cuda.get_size_lms() >= 0

    def test_default_limit(self) -> None:
        torch.cuda.set_limit_lms(0)
        free, total = torch.cuda.mem_get_info()
        expected = (free + torch.cuda.memory_reserved()) * 0.95
        assert abs(torch.cuda.get_limit_lms() - expected) <= 100
        assert torch.cuda.get_limit_lms() <= total

    def test_limits_per_device(self) -> None:
        skip_without_second_device()
        torch.cuda.set_limit_lms(48 * MIB)
        assert torch.cuda.get_limit_lms() == 48 * MIB
        assert torch.cuda.get_limit_lms(1) == 48 * MIB
        torch.cuda.set_limit_lms(40 * MIB, 1)
        assert torch.cuda.get_limit_lms("cuda:1") == 40 * MIB
        assert torch.cuda.get_limit_lms(torch.device("cuda", 0)) == 48 * MIB
        with torch.cuda.device(1):
            assert torch.cuda.get_limit_lms() == 40 * MIB
        for odd in (1, 12345, 33 * MIB + 7):
            torch.cuda.set_limit_lms(odd)
            assert torch.cuda.get_limit_lms(0) == odd, torch.cuda.get_limit_lms(0)
        torch.cuda.set_limit_lms(1 << 50)
        assert torch.cuda.get_limit_lms(0) == torch.cuda.mem_get_info()[1]
        torch.cuda.set_limit_lms(0)

    def test_limit_is_kept(self) -> None:
        torch.cuda.set_enabled_lms(True)
        torch.cuda.empty_cache()
        torch.cuda.set_limit_lms(32 * MIB)
        torch.cuda.reset_peak_memory_stats()
        tensors = [torch.full((MIB,), float(i), device="cuda") for i in range(20)]
        assert torch.cuda.max_memory_reserved() <= 32 * MIB
        assert [tensor[5].item() for tensor in tensors] == list(map(float, range(20)))
        torch.cuda.set_limit_lms(0)

    def test_limit_lowered_below_what_is_used(self) -> None:
        torch.cuda.set_enabled_lms(True)
        tensors = [torch.full((MIB,), float(i), device="cuda") for i in range(20)]
        torch.cuda.set_limit_lms(24 * MIB)
        more = [torch.full((MIB,), float(i), device="cuda") for i in range(20)]
        assert torch.cuda.memory_reserved() <= 24 * MIB
        assert [tensor[5].item() for tensor in tensors + more] == list(map(float, range(20))) * 2
        torch.cuda.set_limit_lms(0)

    def test_size_of_the_smallest_managed_storage(self) -> None:
        torch.cuda.set_enabled_lms(True)
        before = torch.cuda.get_size_lms()
        torch.cuda.set_size_lms(4096)
        assert torch.cuda.get_size_lms() == 4096
        small, large = numbers(1000).cuda(), numbers(1024).cuda()
        torch.cuda.reclaim_inactive()
        assert lms.is_resident(small) and not lms.is_resident(large)
        torch.cuda.set_size_lms(before)

    def test_host_limit(self) -> None:
        assert lms.get_host_limit() > 0
        lms.set_host_limit(123 * MIB)
        assert lms.get_host_limit() == 123 * MIB
        lms.set_host_limit(0)
        assert lms.get_host_limit() > 123 * MIB

    def test_statistics(self) -> None:
        torch.cuda.set_enabled_lms(True)
        names = ["reclaimed", "reclaimed_bytes"]
        names += [
            f"{name}.{pool}.{kind}"
            for name in ("pinned", "pinned_bytes", "lms.managed", "lms.managed_bytes")
            for pool in ("all", "small_pool", "large_pool")
            for kind in ("current", "peak", "allocated", "freed")
        ]
        names += [
            f"alloc_distribution.{source}"
            for source in (
                "freelist", "cudamalloc", "reclaim_one", "reclaim_fragments", "reclaim_all",
                "cudamalloc_retry",
            )
        ]  # fmt: skip
        names += [
            f"lms.{way}.{what}"
            for way in (
                *("page_in", "page_in.ahead", "page_out", "moved"),
                *("disk_read", "disk_write"),
            )
            for what in ("copies", "bytes")
        ]
        names += ["lms.dropped", "lms.dropped_bytes", "lms.hints.overruled"]
        names += [f"lms.recompute.{what}" for what in ("count", "bytes", "us")]
        names += [
            f"lms.{way}.us" for way in ("page_in", "page_out", "moved", "disk_read", "disk_write")
        ]
        names += [f"lms.disk_bytes.{n}" for n in ("current", "others", "limit")]
        names += [
            f"lms.stall.{cause}.{what}"
            for cause in ("demand", "ahead", "memory")
            for what in ("times", "us")
        ]
        names += [f"lms.prefetch.{what}" for what in ("hits", "late", "wasted")]
        names += ["lms.hidden_percent", "lms.free_bytes.all", "lms.free_bytes.largest"]
        names += [
            f"lms.host_bytes.{n}"
            for n in ("current", "peak", "reserved", "page_locked", "others", "limit")
        ]
        names += [
            f"lms.{what}.{n}"
            for what in ("paged_out_bytes", "on_disk_bytes")
            for n in ("current", "peak", "allocated", "freed")
        ]
        names += ["num_ooms"]  # in upstream's place
        own, all_ = lms.stats(), torch.cuda.memory_stats()
        for name in names:
            assert isinstance(own[name], int), name
            assert all_[name] == own[name], name
        assert set(own) == set(names), set(own) ^ set(names)
        nested = torch.cuda.memory_stats_as_nested_dict()
        assert nested["pinned"]["all"]["current"] == own["pinned.all.current"]
        assert nested["alloc_distribution"]["freelist"] == own["alloc_distribution.freelist"]
        assert nested["reclaimed"] == own["reclaimed"]
        assert nested["lms"]["page_in"]["bytes"] == own["lms.page_in.bytes"]
        assert list(own) == sorted(own)

    def test_statistics_of_another_device(self) -> None:
        skip_without_second_device()
        assert torch.cuda.memory_stats(1)["reclaimed"] == lms.stats(1)["reclaimed"]

    def test_statistics_count_right(self) -> None:
        torch.cuda.set_enabled_lms(True)
        before = lms.stats()
        tensor = numbers(3 * MIB).cuda()
        size = tensor.nbytes

        def grown(name: str) -> int:
            return lms.stats()[name] - before[name]

        assert grown("lms.managed_bytes.all.current") == size
        assert grown("lms.managed_bytes.large_pool.current") == size
        assert grown("lms.managed.all.current") == 1
        page_out(tensor)
        assert grown("lms.page_out.bytes") >= size and grown("lms.page_out.copies") >= 1
        assert grown("reclaimed_bytes") == grown("lms.page_out.bytes")
        assert grown("lms.paged_out_bytes.current") >= size
        assert grown("lms.host_bytes.current") >= size
        with lms.pin(tensor):
            assert grown("pinned_bytes.all.current") == size and grown("pinned.all.current") == 1
            assert grown("lms.page_in.bytes") == size and grown("lms.page_in.copies") == 1
        assert grown("pinned_bytes.all.current") == 0
        assert grown("pinned_bytes.all.freed") == grown("pinned_bytes.all.allocated") >= size
        del tensor
        assert grown("lms.managed_bytes.all.current") == 0

    def test_reset_peak(self) -> None:
        torch.cuda.set_enabled_lms(True)
        tensor = paged_out(numbers(MIB))
        names = [name for name in lms.stats() if name.endswith(".peak")]
        (tensor + 1).sum()
        del tensor
        assert lms.stats()["lms.host_bytes.peak"] > lms.stats()["lms.host_bytes.current"]
        torch.cuda.reset_peak_memory_stats()
        stats = lms.stats()
        for name in names:
            assert stats[name] == stats[name.replace(".peak", ".current")], name

    def test_summary(self) -> None:
        torch.cuda.set_enabled_lms(True)
        tensor = paged_out(numbers(MIB))
        summary = torch.cuda.memory_summary()
        rows = ["LMS pinned memory", "LMS pinned allocs", "LMS managed memory", "LMS paged out"]
        for row in [*rows, "LMS reclaimed", "LMS made again"]:
            assert f" {row} " in summary, row
        assert {len(line) for line in summary.splitlines() if line.startswith("|")} == {77}, (
            "a row is not as wide as the table"
        )
        assert "4096 KiB" in next(line for line in summary.splitlines() if "LMS paged out" in line)
        assert "LMS" in torch.cuda.memory_summary(abbreviated=True)
        del tensor

    def test_pin_is_a_context_manager(self) -> None:
        torch.cuda.set_enabled_lms(True)
        one, other = paged_out(numbers(64)), paged_out(numbers(64))
        page_out(one, other)
        with lms.pin(one, other):
            torch.cuda.reclaim_inactive()
            assert lms.is_resident(one) and lms.is_resident(other)
            with lms.pin(one):
                pass
            torch.cuda.reclaim_inactive()
            assert lms.is_resident(one), "the inner pin took the outer one away"
        assert not is_held(one) and not is_held(other)
        with lms.pin(one, one, one[3:], one.untyped_storage()):
            assert lms.is_resident(one)
        assert not is_held(one)
        with lms.pin():
            pass
        with lms.pin(numbers(3), torch.empty(0, device="cuda")):
            pass

    def test_pin_and_exceptions(self) -> None:
        torch.cuda.set_enabled_lms(True)
        tensor = paged_out(numbers(64))

        def fails() -> None:
            with lms.pin(tensor):
                raise KeyError("mine")

        raises(KeyError, fails, "mine")
        assert not is_held(tensor)
        made = numbers(64).cuda()
        assert not is_held(made), "operators adopt again after the exception"

    def test_pin_of_what_is_freed_inside(self) -> None:
        torch.cuda.set_enabled_lms(True)
        before = lms.stats()["pinned_bytes.all.current"]
        tensor = paged_out(numbers(64))
        with lms.pin(tensor):
            del tensor
        assert lms.stats()["pinned_bytes.all.current"] == before

    def test_pin_leaves_new_tensors_alone(self) -> None:
        torch.cuda.set_enabled_lms(True)
        tensor = paged_out(numbers(64))
        with lms.pin(tensor):
            made = tensor * 2
            torch.cuda.reclaim_inactive()
            assert lms.is_resident(made)
        made.add_(0)
        assert not is_held(made)

    def test_pin_that_does_not_fit(self) -> None:
        torch.cuda.set_enabled_lms(True)
        torch.cuda.empty_cache()
        torch.cuda.set_limit_lms(40 * MIB)
        tensors = [torch.full((4 * MIB,), float(i), device="cuda") for i in range(4)]  # 16 MiB each
        raises(torch.cuda.OutOfMemoryError, lambda: lms.pin(*tensors).__enter__(), "set_limit_lms")
        assert not any(is_held(tensor) for tensor in tensors), "a pin was left behind"
        assert [tensor[7].item() for tensor in tensors] == [0.0, 1.0, 2.0, 3.0]
        torch.cuda.set_limit_lms(0)

    def test_pin_with_lms_off(self) -> None:
        torch.cuda.set_enabled_lms(False)
        with lms.pin(numbers(3).cuda()):
            pass
        assert lms.is_resident(numbers(3).cuda())
        torch.cuda.reclaim_inactive()
        torch.cuda.set_enabled_lms(True)


if __name__ == "__main__":
    torch.cuda.init()
    run_tests()
