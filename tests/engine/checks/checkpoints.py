"""Models that are larger than the device's memory are loaded and saved, a tensor at a time.

Usage: checkpoints.py [TEST...]
"""

from __future__ import annotations

import json
import resource
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import simcuda
import torch
from harness import TestCase, Worker, assert_same, lms, numbers, raises, run_tests
from torch import Tensor, nn
from torch.cuda._lms_timeline import measured

MIB = 1 << 20
LIMIT = 64 * MIB  # of the device
WIDTH, LAYERS = 1024, 40  # 4 MiB of weights each: 160 MiB


class Model(nn.Module):
    """Its first and last layer share their weight; it has a buffer, and one without bytes."""

    def __init__(self, layers: int = LAYERS, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        sizes = {"in_features": WIDTH, "out_features": WIDTH, "dtype": dtype}
        self.layers = nn.ModuleList(nn.Linear(**sizes, bias=False) for _ in range(layers))
        self.last = nn.Linear(WIDTH, WIDTH, bias=True, dtype=dtype)
        self.last.weight = self.layers[0].weight
        self.register_buffer("count", torch.tensor(0, dtype=torch.int64))
        self.register_buffer("nothing", torch.empty(0, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


def on_meta(layers: int = LAYERS, dtype: torch.dtype = torch.float32) -> Model:
    with torch.device("meta"):
        return Model(layers, dtype)


def expected_of(number: int) -> Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(-64, 64, (WIDTH, WIDTH), generator=generator) / 64


def trained() -> Model:
    """On the device, with values that bfloat16 has as well."""
    model = Model().cuda()
    with torch.no_grad():
        for number, layer in enumerate(model.layers):
            layer.weight.copy_(expected_of(number))
        model.last.bias.fill_(3)
        model.count.fill_(7)
    return model


def expect_trained(model: Model, dtype: torch.dtype = torch.float32) -> None:
    assert model.last.weight is model.layers[0].weight
    for number, layer in enumerate(model.layers):
        assert layer.weight.is_cuda and layer.weight.requires_grad
        assert_same(layer.weight, expected_of(number).to(dtype))
    assert model.last.bias.eq(3).all() and model.count.item() == 7
    assert model.nothing.shape == (0,) and model.nothing.is_cuda


def assert_all_same(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)


def folder_for(test: TestCase) -> Path:
    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)
    return Path(folder.name)


def resident(which: str) -> int:
    """Bytes of this process in memory: now ("VmRSS") or at most ("VmHWM"); see proc(5)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(which))
    return int(line.split()[1]) << 10


def begin_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


class TestCheckpoints(TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = folder_for(self)
        torch.cuda.set_limit_lms(LIMIT)

    def tearDown(self) -> None:
        torch.cuda.set_limit_lms(0)
        super().tearDown()

    def round_trip(self, write: Callable[[Model, Path], None], name: str) -> None:
        write(trained(), self.folder / name)
        model = on_meta()
        lms.load(model, self.folder / name)
        expect_trained(model)
        model(torch.ones(1, WIDTH, device="cuda")).sum().backward()

    def test_one_file(self) -> None:
        self.round_trip(lms.save, "model.safetensors")
        assert [path.name for path in self.folder.iterdir()] == ["model.safetensors"]

    def test_several_files(self) -> None:
        self.round_trip(lambda model, path: lms.save(model, path, max_shard_bytes=32 * MIB), "all")
        files = sorted(path.name for path in (self.folder / "all").iterdir())
        assert len(files) == 7 and files[0] == "model-00001-of-00006.safetensors"
        assert files[-1] == "model.safetensors.index.json"
        lms.load(on_meta(), self.folder / "all" / files[-1])

    def test_what_torch_saved(self) -> None:
        self.round_trip(lambda model, path: torch.save(model.state_dict(), path), "model.pt")

    def test_host_memory(self) -> None:
        """To save takes that of one tensor more."""
        model = trained()
        for _ in range(3):  # until LMS, and the simulated device, have what memory they take
            lms.save(model, self.folder / "model.safetensors")
        before = begin_peak()
        lms.save(model, self.folder / "model.safetensors")
        assert resident("VmHWM") - before < 24 * MIB

    def test_another_dtype(self) -> None:
        lms.save(trained(), self.folder / "model.safetensors")
        model = on_meta(dtype=torch.bfloat16)
        lms.load(model, self.folder / "model.safetensors")
        expect_trained(model, torch.bfloat16)

    def test_in_place(self) -> None:
        lms.save(trained(), self.folder / "model.safetensors")
        model = Model().cuda()
        weight, optimizer = model.layers[3].weight, torch.optim.SGD(model.parameters(), lr=1.0)
        lms.load(model, self.folder / "model.safetensors")
        expect_trained(model)
        assert model.layers[3].weight is weight is optimizer.param_groups[0]["params"][3]

    def test_parts(self) -> None:
        """Without `strict`, what has values may stay as it is."""
        lms.save({"last.bias": torch.full((WIDTH,), 9.0)}, self.folder / "part.safetensors")
        model = trained()
        lms.load(model, self.folder / "part.safetensors", strict=False)
        assert model.last.bias.eq(9).all() and model.count.item() == 7
        raises(
            ValueError,
            lambda: lms.load(on_meta(), self.folder / "part.safetensors", strict=False),
            "lacks what the model has",
        )

    def test_tensors_of_all_kinds(self) -> None:
        x = torch.arange(24, device="cuda").view(4, 6)
        tensors = {
            "transposed": x.float().t(),
            "part": x[1:3, ::2],
            "flags": x > 7,
            "halves": x.half(),
            "conjugate": torch.complex(x.float(), x.float() + 1).conj(),
            "number": torch.tensor(2.5, dtype=torch.float64),
            "on the host": torch.arange(3, dtype=torch.int16),
        }
        lms.save(tensors, self.folder / "x.safetensors")
        module = nn.Module()
        for name, tensor in tensors.items():
            module.register_buffer(name, torch.empty_like(tensor, device="meta").contiguous())
        lms.load(module, self.folder / "x.safetensors")
        for name, tensor in tensors.items():
            assert_same(getattr(module, name).resolve_conj(), tensor.cpu().resolve_conj())


class Loaded:
    """What loading a model has cost."""

    def __init__(self, path: Path, dtype: torch.dtype = torch.float32) -> None:
        before = lms.stats()
        torch.cuda.reset_peak_memory_stats()
        self.model = on_meta(dtype=dtype)
        lms.load(self.model, path)
        now = lms.stats()
        self.reserved = torch.cuda.max_memory_reserved()
        moved = ("lms.page_in.bytes", "lms.page_out.bytes", "reclaimed")
        self.moved = sum(now[name] - before[name] for name in moved)
        self.away = now["lms.paged_out_bytes.current"] - before["lms.paged_out_bytes.current"]
        self.on_host = now["lms.host_bytes.current"] - before["lms.host_bytes.current"]
        self.managed = now["lms.managed.all.current"] - before["lms.managed.all.current"]


class TestWhereTensorsGo(TestCase):
    """The device is filled; all others begin on the host, and nothing is paged out for them."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        model, cls.path = trained(), Path(folder.name) / "model.safetensors"
        cls.path_of_torch = cls.path.with_suffix(".pt")
        lms.save(model, cls.path)
        torch.save(model.state_dict(), cls.path_of_torch)

    def setUp(self) -> None:
        super().setUp()
        torch.cuda.empty_cache()
        torch.cuda.set_limit_lms(LIMIT)

    def tearDown(self) -> None:
        torch.ops.lms.set_chaos(False)
        torch.cuda.set_enabled_lms(True)
        lms.set_host_limit(0)
        torch.cuda.set_limit_lms(0)
        super().tearDown()

    def expect_no_detour(self, path: Path, dtype: torch.dtype) -> Loaded:
        loaded, bytes_ = Loaded(path, dtype), LAYERS * WIDTH * WIDTH * dtype.itemsize
        assert loaded.moved == 0, loaded.moved
        assert loaded.reserved <= LIMIT, loaded.reserved
        assert bytes_ - LIMIT <= loaded.away <= bytes_ - LIMIT // 2, loaded.away
        assert loaded.on_host == loaded.away, (loaded.on_host, loaded.away)
        assert loaded.managed == LAYERS + 2, loaded.managed  # bias and count
        expect_trained(loaded.model, dtype)
        return loaded

    def test_no_detour(self) -> None:
        loaded = self.expect_no_detour(self.path, torch.float32)
        loaded.model(torch.ones(1, WIDTH, device="cuda")).sum().backward()

    def test_over_the_link(self) -> None:
        if not simcuda.active():
            self.skipTest("nobody else counts the bytes")
        before = simcuda.stats()
        loaded = Loaded(self.path)
        now = simcuda.stats()
        crossed = now.host_to_device_bytes - before.host_to_device_bytes
        assert crossed <= LIMIT, crossed
        assert now.device_to_host_bytes == before.device_to_host_bytes
        expect_trained(loaded.model)

    def test_what_torch_saved(self) -> None:
        self.expect_no_detour(self.path_of_torch, torch.float32)

    def test_another_dtype(self) -> None:
        self.expect_no_detour(self.path, torch.bfloat16)

    def test_another_layout(self) -> None:
        others = [torch.ones(MIB, device="cuda") for _ in range(40)]
        value = numbers(64, 64, 32, 32)
        path = folder_for(self) / "images.safetensors"
        lms.save({"images": value}, path)
        module = nn.Module()
        like = torch.empty(value.shape, device="meta", memory_format=torch.channels_last)
        module.register_buffer("images", like)
        lms.load(module, path)
        assert not lms.is_resident(module.images) and others
        assert module.images.stride() == like.stride()
        assert_same(module.images, value)

    def test_the_same_bits(self) -> None:
        """As without LMS, also after training, when it is off again, and where all is evicted."""
        torch.cuda.set_enabled_lms(False)
        expected = self.after_a_step()
        torch.cuda.set_enabled_lms(True)
        assert_all_same(self.after_a_step(), expected)
        loaded = Loaded(self.path)
        torch.cuda.set_enabled_lms(False)
        expect_trained(loaded.model)
        torch.cuda.set_enabled_lms(True)
        torch.ops.lms.set_chaos(True)
        assert_all_same(self.after_a_step(), expected)

    def after_a_step(self) -> list[Tensor]:
        model = on_meta(layers=LAYERS // 2)
        lms.load(model, self.path, strict=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, foreach=False)
        for parameter in model.parameters():
            parameter.square().mean().backward()
        optimizer.step()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    def test_in_a_report(self) -> None:
        """It has the storages where they are."""
        torch.ops.lms.open_report(0)
        loaded = Loaded(self.path)
        expect_trained(loaded.model)
        del loaded
        recorded, names = measured.read(torch.ops.lms.close_report(), {})
        size = WIDTH * WIDTH * 4
        sizes = [storage.bytes for storage in names.storages]
        first = min(copy.begin for copy in recorded.copies)
        on_host = [stay for stay in recorded.host if sizes[stay.storage] == size]
        began = {stay.storage for stay in on_host if stay.begin < first}
        assert len(began) >= LAYERS - LIMIT // size, began
        for stay in recorded.device:
            assert stay.storage not in began or stay.begin >= first, stay

    def test_what_is_never_used(self) -> None:
        before = lms.stats()
        loaded = Loaded(self.path)
        del loaded
        for name in ("lms.host_bytes", "lms.paged_out_bytes", "lms.managed_bytes.all"):
            now = lms.stats()[f"{name}.current"]
            assert now == before[f"{name}.current"], (name, now)

    def test_the_file_is_in_memory_once(self) -> None:
        for path in (self.path, self.path_of_torch):
            for _ in range(2):  # until LMS, and the simulated device, have what memory they take
                Loaded(path)
            before = begin_peak()
            Loaded(path)
            assert resident("VmHWM") - before < 24 * MIB, path

    def test_the_host_is_full(self) -> None:
        """There is an error then, and the model is as it was."""
        torch.cuda.set_enabled_lms(False)  # what there is goes back to the system
        lms.set_host_limit(32 * MIB)
        torch.cuda.set_enabled_lms(True)
        torch.cuda.reset_peak_memory_stats()
        model = on_meta()
        with self.assertRaisesRegex(torch.OutOfMemoryError, "Large Model Support"):
            lms.load(model, self.path)
        assert all(tensor.is_meta for tensor in model.state_dict().values())
        assert lms.stats()["lms.host_bytes.peak"] <= 32 * MIB
        lms.set_host_limit(0)
        expect_trained(Loaded(self.path).model)

    def test_a_thread_without_lms(self) -> None:
        """Nobody would bring its tensors back for it."""
        torch.cuda.set_enabled_lms(False)
        begins = threading.Event()
        model = nn.Linear(WIDTH, WIDTH, device="meta")
        path = folder_for(self) / "part.safetensors"
        lms.save({"weight": expected_of(1), "bias": torch.ones(WIDTH)}, path)

        def load() -> None:
            begins.wait()
            lms.load(model, path)

        worker = Worker(load)
        worker.start()
        torch.cuda.set_enabled_lms(True)
        others = [torch.ones(MIB, device="cuda") for _ in range(40)]
        begins.set()
        worker.finish()
        assert lms.stats()["lms.page_out.bytes"] > 0 and others
        assert torch.ops.lms.storage_id(model.weight.untyped_storage()) == 0
        assert_same(model.weight, expected_of(1))


class TestErrors(TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.path = folder_for(self) / "model.safetensors"

    def refuse(self, model: nn.Module, *words: str, path: Path | None = None) -> None:
        before = {name: value.clone() for name, value in model.state_dict().items()}
        raises(ValueError, lambda: lms.load(model, path or self.path), *words)
        for name, value in model.state_dict().items():
            assert value.is_meta == before[name].is_meta
            assert value.is_meta or torch.equal(value, before[name])

    def test_names(self) -> None:
        lms.save({"weight": torch.ones(2, 2)}, self.path)
        self.refuse(nn.Linear(2, 2).cuda(), "lacks what the model has: bias")
        lms.save({"weight": torch.ones(2, 2), "bias": torch.ones(2), "c": torch.ones(1)}, self.path)
        self.refuse(nn.Linear(2, 2).cuda(), "has what the model lacks: c")

    def test_shapes(self) -> None:
        lms.save({"weight": torch.ones(2, 3), "bias": torch.ones(2)}, self.path)
        self.refuse(nn.Linear(2, 2).cuda(), "weight: [2, 3] instead of [2, 2]")

    def test_buffers_without_a_value(self) -> None:
        with torch.device("meta"):
            module = nn.Module()
            module.register_buffer("angles", torch.ones(3), persistent=False)
        lms.save({}, self.path)
        self.refuse(module, "angles", "persistent=False")

    def test_broken_files(self) -> None:
        lms.save({"weight": torch.ones(2, 2), "bias": torch.ones(2)}, self.path)
        content = self.path.read_bytes()
        for broken, words in {
            b"": "no file of safetensors",
            content[:40]: "no file of safetensors",
            content[:-1]: "cut short",
            content.replace(b'"F32"', b'"F33"'): "F33",
            content[:8] + b"[" * 8 + content[16:]: "its header is broken",
        }.items():
            self.path.write_bytes(broken)
            self.refuse(nn.Linear(2, 2).cuda(), words)
            self.refuse(nn.Linear(2, 2, device="meta"), words)

    def test_files_that_are_not_there(self) -> None:
        load = lms.load
        raises(FileNotFoundError, lambda: load(nn.Linear(2, 2), self.path), "model.safetensors")
        raises(FileNotFoundError, lambda: load(nn.Linear(2, 2), self.path.parent), "0 files")
        index = self.path.with_name("model.safetensors.index.json")
        index.write_text(json.dumps({"weight_map": {"weight": "gone.safetensors"}}))
        raises(FileNotFoundError, lambda: load(nn.Linear(2, 2), index), "gone.safetensors")

    def test_more_than_weights(self) -> None:
        path = self.path.with_suffix(".pt")
        torch.save({"step": 3, "model": {}}, path)
        self.refuse(nn.Linear(2, 2).cuda(), "no state_dict", path=path)

    def test_saving_what_the_format_has_not(self) -> None:
        number = torch.ones(1, dtype=torch.complex128)
        raises(ValueError, lambda: lms.save({"z": number}, self.path), "z", "complex128")
        raises(ValueError, lambda: lms.save(on_meta(1), self.path), "no value")
        assert not list(self.path.parent.iterdir())

    def test_saving_that_fails(self) -> None:
        """The file before stays, and nothing else."""
        lms.save({"weight": torch.ones(2)}, self.path)
        before = self.path.read_bytes()
        large = {"large": torch.ones(8 * MIB)}
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, limits[1]))
        try:
            raises(OSError, lambda: lms.save(large, self.path), "File too large")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert self.path.read_bytes() == before
        assert list(self.path.parent.iterdir()) == [self.path]


if __name__ == "__main__":
    torch.cuda.set_enabled_lms(True)
    run_tests()
