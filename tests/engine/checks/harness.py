"""What the programs in this folder share: running their checks, and making paged-out tensors.

A program is written as PyTorch's own tests are: TestCases, and `run_tests()` at the end. It runs
on a CUDA device, simulated or not, and prints lines for tests/engine/checked.py to read.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import unittest
from collections.abc import Callable
from typing import Any

import torch

lms = torch.cuda.lms


class TestCase(unittest.TestCase):
    """A class of tests, each of which draws the same random numbers.

    PyTorch's own takes as long to import as PyTorch.
    """

    def setUp(self) -> None:
        super().setUp()
        torch.manual_seed(1234)


class Reporter(unittest.TestResult):
    """Prints a line for each test that begins, and for each that ends."""

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        report(name_of(test), "started")

    def addSuccess(self, test: unittest.TestCase) -> None:
        report(name_of(test), "passed")

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        report(name_of(test), "failed", self.failures[-1][1])

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        report(name_of(test), "failed", self.errors[-1][1])

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        report(name_of(test), "skipped", reason)

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        gc.collect()


def run_tests() -> None:
    """Runs the tests named on the command line, or all; the exit status is how many failed."""
    loader, program = unittest.TestLoader(), sys.modules["__main__"]
    names = sys.argv[1:]
    suite = (
        loader.loadTestsFromNames(names, program) if names else loader.loadTestsFromModule(program)
    )
    result = Reporter()
    gc.freeze()  # garbage is not looked for in what is imported, after each test
    suite.run(result)
    sys.exit(len(result.failures) + len(result.errors))


def skip_without_second_device() -> None:
    if torch.cuda.device_count() < 2:
        raise unittest.SkipTest("it takes two devices")


def skip_with_much_memory() -> None:
    if torch.cuda.mem_get_info()[1] > 1 << 30:
        raise unittest.SkipTest("it takes a device whose capacity can be chosen")


def name_of(test: unittest.TestCase) -> str:
    return test.id().removeprefix("__main__.")


def report(test: str, state: str, detail: str = "") -> None:
    print("TEST " + json.dumps([test, state, detail]), flush=True)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Host data that tells elements apart."""
    count = int(torch.Size(shape).numel())
    period = torch.arange(1, 252).to(dtype)
    return period.repeat(count // 251 + 1)[:count].clone().reshape(shape)


def paged_out(host: torch.Tensor) -> torch.Tensor:
    """A CUDA copy of the tensor, its bytes in host memory."""
    tensor = host.cuda()
    page_out(tensor)
    return tensor


def page_out(*tensors: torch.Tensor) -> None:
    torch.cuda.reclaim_inactive()
    for tensor in tensors:
        assert not lms.is_resident(tensor), "the tensor was to be paged out but is resident"


def is_held(tensor: torch.Tensor) -> bool:
    """Whether the storage is unreclaimable, because its address has escaped."""
    torch.cuda.reclaim_inactive()
    return lms.is_resident(tensor)


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """The same shape, data type and bits, wherever the two are."""
    assert actual.shape == expected.shape, f"{actual.shape} != {expected.shape}"
    assert actual.dtype == expected.dtype, f"{actual.dtype} != {expected.dtype}"
    actual, expected = actual.detach().cpu(), expected.detach().cpu()
    if not torch.equal(actual, expected):
        raise AssertionError(f"the data differ:\n{actual}\n{expected}")


def refusals() -> list[int]:
    """Bytes of each request that the native allocator refuses from now on.

    Called before LMS is first on: later observers hear only of errors that the program gets.
    """
    sizes: list[int] = []
    torch.cuda.init()
    torch._C._cuda_attach_out_of_memory_observer(lambda _, size, total, free: sizes.append(size))
    return sizes


class Worker(threading.Thread):
    """A thread that does one thing; what it raises is kept."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.work = work
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.error = error

    def finish(self) -> None:
        """Waits for its end; what it has raised is raised."""
        self.join()
        if self.error:
            raise self.error


def in_thread(work: Callable[[], None]) -> None:
    """Runs it in another thread, to its end; what it raises is raised."""
    worker = Worker(work)
    worker.start()
    worker.finish()


class Address:
    """For `torch.as_tensor`: a tensor's numbers at an address. Keeps nothing alive."""

    def __init__(self, like: torch.Tensor, address: int) -> None:
        kind = {torch.float32: "<f4", torch.int64: "<i8"}[like.dtype]
        self.__cuda_array_interface__ = {
            "shape": tuple(like.shape), "typestr": kind, "data": (address, False), "version": 2,
        }  # fmt: skip


def raises(kind: type[BaseException], call: Callable[[], Any], *words: str) -> str:
    """The message of the error that the call must raise; it must contain the words."""
    try:
        call()
    except kind as error:
        message = str(error)
        for word in words:
            assert word in message, f"{word!r} is not in: {message}"
        return message
    raise AssertionError(f"no {kind.__name__} was raised")
