"""Out-of-memory errors are counted and told of if the program gets them, and only then."""

# ruff: noqa: F821 - it takes names that a lambda reads and that are deleted later for undefined

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from gathering import between, cat, scattered
from harness import TestCase, lms, numbers, raises, refusals, run_tests

MIB = 1 << 20
LIMIT = 64 * MIB

refused = refusals()
told: list[int] = []  # bytes that the program is told it cannot have


def errors() -> int:
    count: int = torch.cuda.memory_stats()["num_ooms"]
    return count


@contextmanager
def expected_errors(count: int) -> Iterator[None]:
    """The native allocator refuses something in between; so many errors count."""
    before = errors()
    refused.clear()
    told.clear()
    yield
    assert refused, "the native allocator refused nothing: this is no test"
    found = errors() - before, len(told)
    assert found == (count, count), f"counted, told: {found} of {len(refused)}, not {count}"
    shown = [line for line in torch.cuda.memory_summary().splitlines() if "CUDA OOMs" in line]
    assert shown[0].split("CUDA OOMs:")[1].split()[0] == str(errors())


def join() -> None:
    """Joins tensors that lie scattered, which LMS has to gather first."""
    torch.cuda.reclaim_inactive()
    cat(scattered([numbers(1024, 1024) for _ in range(7)], 24, 0))
    between.clear()


class TestErrorsThatCount(TestCase):
    def test_an_operator_that_runs_again(self) -> None:
        with expected_errors(0):
            join()

    def test_an_error_counts_once(self) -> None:
        big = [numbers(5 * MIB).cuda() for _ in range(3)]  # 20 MiB each
        row = torch.zeros(1, device="cuda")
        requests: list[Callable[[], object]] = [
            lambda: torch.empty(20 * MIB, device="cuda"),
            lambda: torch.cat(big),
            lambda: torch.addcmul(*big, out=row.expand(5 * MIB).clone()),
            lambda: row.resize_(20 * MIB),
            lambda: torch.cuda.caching_allocator_alloc(80 * MIB),
        ]
        for request in requests:
            with expected_errors(1):
                raises(torch.cuda.OutOfMemoryError, request)
        del big

    def test_an_error_of_another_thread_counts(self) -> None:
        with expected_errors(1):
            thread = threading.Thread(
                target=raises,
                args=(torch.cuda.OutOfMemoryError, lambda: torch.empty(20 * MIB, device="cuda")),
            )
            thread.start()
            thread.join()

    def test_errors_while_tensors_are_pinned(self) -> None:
        pinned = [numbers(4 * MIB).cuda() for _ in range(2)]  # 16 MiB each
        other = numbers(9 * MIB).cuda()
        with lms.pin(*pinned), expected_errors(1):
            raises(torch.cuda.OutOfMemoryError, lambda: other.data_ptr())
        with lms.pin(*pinned), expected_errors(1):
            raises(torch.cuda.OutOfMemoryError, lambda: other.add_(1))
        del other

    def test_that_the_count_starts_anew(self) -> None:
        with expected_errors(1):
            raises(torch.cuda.OutOfMemoryError, lambda: torch.empty(20 * MIB, device="cuda"))
        torch.cuda.reset_accumulated_memory_stats()
        assert errors() == 0
        with expected_errors(0):
            join()

    def test_that_it_stays_when_lms_is_off(self) -> None:
        with expected_errors(0):
            join()
        before = errors()
        torch.cuda.set_enabled_lms(False)
        assert errors() == before
        with expected_errors(1):
            raises(torch.cuda.OutOfMemoryError, lambda: torch.empty(1 << 30, device="cuda"))
        torch.cuda.set_enabled_lms(True)


if __name__ == "__main__":
    torch.cuda.set_enabled_lms(True)
    lms.set_limit_lms(LIMIT)
    torch._C._cuda_attach_out_of_memory_observer(lambda _, size, total, free: told.append(size))
    run_tests()
