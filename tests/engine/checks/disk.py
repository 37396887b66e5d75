"""A disk below the host's memory: the same bits, faults of the disk, and what its file is."""

from __future__ import annotations

import os
import resource
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import simcuda
import torch
from harness import TestCase, assert_same, lms, numbers, page_out, run_tests
from torch import nn

MIB = 1 << 20
HOST = 24 * MIB  # much less than what is paged out
DEVICE = 48 * MIB  # much less than what training needs
FOLDER = Path(os.environ["DISK_FOLDER"])


def start_afresh(limit: int = 0) -> None:
    """With an empty disk, and so much device memory; 0: for all that is here."""
    simcuda.set_faults("")
    torch.cuda.set_enabled_lms(False)
    lms.set_host_limit(HOST)
    lms.set_disk(FOLDER, 1 << 30)
    torch.cuda.set_limit_lms(limit)
    torch.cuda.set_enabled_lms(True)


def tensors(count: int) -> list[torch.Tensor]:
    """Of 4 MiB each, all different."""
    return [content(i).cuda() for i in range(count)]


def content(index: int) -> torch.Tensor:
    return numbers(MIB) + index


def check(found: list[torch.Tensor]) -> None:
    for index, tensor in enumerate(found):
        assert_same(tensor, content(index))


def train(steps: int = 4) -> list[torch.Tensor]:
    torch.manual_seed(3)
    layers = (part for _ in range(8) for part in (nn.Linear(768, 768), nn.GELU()))
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(1024, 768).cuda()
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def traffic() -> tuple[int, int]:
    stats = lms.stats()
    return stats["lms.disk_write.bytes"], stats["lms.disk_read.bytes"]


@contextmanager
def recorded() -> Iterator[list[str]]:
    """Warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        messages: list[str] = []
        yield messages
    messages += [str(warning.message) for warning in found]


def fail_in_writes(faults: str) -> list[str]:
    """What cannot be written stays in host memory, and nothing is lost; the warnings."""
    start_afresh()
    lms.set_disk(FOLDER / "failing", 1 << 30)
    kept = tensors(16)
    simcuda.set_faults(faults)
    with recorded() as messages:
        lms.reclaim_inactive()
        torch.cuda.synchronize()
        lms.reclaim_inactive()
        torch.ones(1, device="cuda").add_(1)  # who runs an operator next is told
    lms.set_host_limit(0)
    page_out(*kept)
    simcuda.set_faults("")
    check(kept)
    return messages


class Deep(nn.Module):
    """80 MiB, more than three times what the host has for it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024, bias=False) for _ in range(20))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def train_deep(model: Deep) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = numbers(64, 1024).cuda() / 251
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


class TestDisk(TestCase):
    def test_same_bits(self) -> None:
        torch.cuda.set_enabled_lms(False)
        expected = train()
        start_afresh(DEVICE)
        before = traffic()
        found = train()
        written, read = (now - then for now, then in zip(traffic(), before, strict=True))
        assert written > 32 * MIB and read > 16 * MIB, (written, read)
        assert lms.stats()["lms.host_bytes.peak"] <= HOST
        for one, other in zip(expected, found, strict=True):
            assert_same(one, other)

    def test_a_model_of_three_times_what_the_host_has(self) -> None:
        torch.cuda.set_enabled_lms(False)
        torch.manual_seed(5)
        model = Deep().cuda()
        with tempfile.TemporaryDirectory() as folder:
            first, second = (Path(folder) / f"{name}.safetensors" for name in ("first", "second"))
            lms.save(model, first)
            expected = train_deep(model)
            del model
            torch.cuda.empty_cache()  # or what is over the limit goes with the first operator
            start_afresh(DEVICE)
            with torch.device("meta"):
                model = Deep()
            before = lms.stats()["lms.page_out.bytes"]
            lms.load(model, first)
            assert lms.stats()["lms.page_out.bytes"] == before, "a tensor came by the device"
            for one, other in zip(expected, train_deep(model), strict=True):
                assert_same(one, other)
            lms.save(model, second)
            del model
            with torch.device("meta"):
                model = Deep()
            lms.load(model, second)
            for one, other in zip(expected, model.parameters(), strict=True):
                assert_same(one, other)
        assert lms.stats()["lms.disk_read.bytes"] > 0
        assert lms.stats()["lms.host_bytes.peak"] <= HOST

    def test_faults_in_training(self) -> None:
        torch.cuda.set_enabled_lms(False)
        expected = train(2)
        same = failed = 0
        for call in ("pread", "pwrite"):
            for number in (1, 2, 3, 5, 8, 13, 21, 100_000):
                start_afresh(DEVICE)
                simcuda.set_faults(f"{call}:{number}")
                try:
                    with recorded():
                        found = train(2)
                except RuntimeError as error:  # one of memory, where the disk is left out
                    assert "failed: Input/output" in str(error) or "out of memory" in str(error)
                    failed += 1
                else:
                    for one, other in zip(expected, found, strict=True):
                        assert_same(one, other)
                    same += 1
        simcuda.set_faults("")
        assert same >= 2 and failed > 0, (same, failed)

    def test_more_than_the_host_has(self) -> None:
        start_afresh()
        kept = tensors(24)
        page_out(*kept)
        away = lms.stats()
        assert away["lms.paged_out_bytes.current"] >= 96 * MIB
        assert away["lms.on_disk_bytes.current"] >= 72 * MIB
        check(kept)
        check(kept[::-1][::-1])

    def test_what_is_only_read_is_written_once(self) -> None:
        start_afresh()
        kept = tensors(16)
        page_out(*kept)
        written = traffic()[0]
        for _ in range(3):
            check(kept)
            page_out(*kept)
        assert traffic()[0] - written <= 24 * MIB, "what the host held only, once"

    def test_a_hint_for_the_host_keeps_tensors_off_the_disk(self) -> None:
        for is_hinted in (False, True):
            start_afresh()
            kept = tensors(16)
            if is_hinted:
                lms.hint(kept[:4], host=True)
            page_out(*kept[:4])  # used longest ago: they would be first
            page_out(*kept[4:])
            before = traffic()[1]
            check(kept[:4])
            assert (traffic()[1] == before) == is_hinted
        assert lms.stats()["lms.hints.overruled"] == 0
        check(kept)
        lms.hint(kept, host=True)  # 64 MiB, and the host has 24
        page_out(*kept)
        assert lms.stats()["lms.hints.overruled"] > 0
        check(kept)

    def test_what_is_written_to_is_not_what_is_on_disk(self) -> None:
        start_afresh()
        kept = tensors(12)
        for round in range(1, 4):
            page_out(*kept)
            for tensor in kept:
                tensor.add_(1)
            for index, tensor in enumerate(kept):
                assert_same(tensor, content(index) + round)

    def test_the_dead_leave_no_bytes(self) -> None:
        start_afresh()
        kept = tensors(20)
        page_out(*kept)
        del kept[::2]
        for _ in range(8):  # while transfers are under way
            page_out(*tensors(10))
        for index, tensor in enumerate(kept):
            assert_same(tensor, content(2 * index + 1))
        del tensor
        kept.clear()
        torch.cuda.synchronize()
        page_out(torch.ones(MIB, device="cuda"))
        stats = lms.stats()
        assert stats["lms.on_disk_bytes.current"] == 0, stats["lms.on_disk_bytes.current"]

    def test_off_and_on(self) -> None:
        start_afresh()
        kept = tensors(10)
        page_out(*kept)
        lms.set_disk(None)
        assert lms.get_disk() is None
        check(kept)
        page_out(*kept[:5])
        torch.cuda.set_enabled_lms(False)
        check(kept)

    def test_reads_that_fail(self) -> None:
        start_afresh()
        kept = tensors(16)
        page_out(*kept)
        simcuda.set_faults("pread:1-")
        failed = 0
        for index, tensor in enumerate(kept):
            try:
                assert_same(tensor, content(index))
            except RuntimeError as error:
                assert f"reading from {FOLDER} failed: Input/output error" in str(error)
                failed += 1
        assert failed > 0
        simcuda.set_faults("")
        check(kept)

    def test_one_read_that_fails(self) -> None:
        start_afresh()
        for number in range(1, 9, 3):
            kept = tensors(12)
            page_out(*kept)
            simcuda.set_faults(f"pread:{number}")
            for index, tensor in enumerate(kept):
                try:
                    assert_same(tensor, content(index))
                except RuntimeError as error:
                    assert "failed: Input/output error" in str(error)
            simcuda.set_faults("")
            check(kept)

    def test_writes_that_fail(self) -> None:
        (FOLDER / "failing").mkdir()
        found = [fail_in_writes(f"pwrite:{number}") for number in ("1", "3-", "7")]
        (FOLDER / "failing").rmdir()
        told = [text for texts in found for text in texts if "leaves the disk out" in text]
        assert len(told) == 1 and f"writing to {FOLDER / 'failing'} failed" in told[0], found

    def test_a_full_disk(self) -> None:
        start_afresh()
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5 * MIB + 4096, before[1]))
        try:
            kept = tensors(16)
            with recorded() as messages:
                lms.reclaim_inactive()
                torch.cuda.synchronize()
                lms.reclaim_inactive()
                torch.ones(1, device="cuda").add_(1)
            lms.set_host_limit(0)
            page_out(*kept)
            check(kept)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert any("File too large" in text for text in messages), messages

    def test_transfers_that_cannot_be_queued(self) -> None:
        for number in (1, 2, 5):
            start_afresh()
            kept = tensors(12)
            simcuda.set_faults(f"cudaLaunchHostFunc:{number}")
            with recorded():
                lms.reclaim_inactive()
            for index, tensor in enumerate(kept):
                try:
                    assert_same(tensor, content(index))
                except RuntimeError as error:
                    assert "read a tensor back" in str(error), error
            simcuda.set_faults("")
            check(kept)

    def test_limit(self) -> None:
        start_afresh()
        lms.set_disk(FOLDER, 16 * MIB)
        kept = tensors(16)
        lms.reclaim_inactive()
        assert 8 * MIB <= lms.stats()["lms.disk_bytes.current"] <= 16 * MIB
        lms.set_host_limit(0)
        check(kept)

    def test_the_file_has_no_name(self) -> None:
        start_afresh()
        page_out(*tensors(12))
        names = {
            int(path.name): os.readlink(path)
            for path in Path("/proc/self/fd").iterdir()
            if path.is_symlink()
        }
        files = {number: name for number, name in names.items() if str(FOLDER) in name}
        assert files and all("(deleted)" in name for name in files.values()), names
        for number in files:
            assert os.fstat(number).st_mode & 0o777 == 0o600 and os.fstat(number).st_nlink == 0
        assert not any(FOLDER.iterdir())

    def test_what_is_refused(self) -> None:
        start_afresh()
        for folder, limit, kind, text in (
            (FOLDER / "none", MIB, RuntimeError, "No such file or directory"),
            (FOLDER, 1 << 60, RuntimeError, "are free"),
            (FOLDER, 0, ValueError, "limit must be the bytes"),
            (FOLDER, -1, ValueError, "between 0"),
            (FOLDER, True, TypeError, "int"),
            (b"/tmp", MIB, TypeError, "folder must be a path"),
            (1, MIB, TypeError, "int"),
        ):
            with self.assertRaisesRegex(kind, text):
                lms.set_disk(folder, limit)
            assert lms.get_disk() == (str(FOLDER), 1 << 30), "as it was"

    def test_a_file_system_in_memory(self) -> None:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            try:
                lms.set_disk(folder, MIB)
            except RuntimeError as error:
                assert "O_DIRECT" in str(error)
            else:  # since Linux 6.6 one in memory takes it
                lms.set_disk(None)


if __name__ == "__main__":
    run_tests()
