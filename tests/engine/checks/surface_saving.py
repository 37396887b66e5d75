"""Saving, copying and pickling paged-out tensors: data and sharing survive, nothing is held."""

import copy
import io
import pickle
from typing import Any

import torch
from harness import TestCase, assert_same, is_held, lms, numbers, page_out, paged_out, run_tests
from torch import nn


def shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata


def saved_and_loaded(value: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


def tied_model() -> nn.Module:
    """Modules with a tied weight, a view as buffer, and batch norm's 0-dimensional counter."""
    model = nn.Sequential(nn.Embedding(11, 6), nn.BatchNorm1d(6), nn.Linear(6, 11))
    model[2].weight = model[0].weight
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(numbers(*parameter.shape))
    model = model.cuda()
    model.register_buffer("row", model[0].weight.detach()[3])
    return model


class TestSurfaceSaving(TestCase):
    def test_save_and_load_a_tensor(self) -> None:
        host = numbers(5, 3)
        tensor = paged_out(host)
        loaded = saved_and_loaded(tensor)
        assert loaded.device.type == "cuda"
        assert_same(loaded, host)
        loaded.add_(0)  # LMS manages a tensor from its first operator on
        page_out(tensor, loaded)
        assert_same(saved_and_loaded(tensor, map_location="cpu"), host)
        assert not is_held(tensor) and not is_held(loaded)

    def test_save_keeps_strides_and_flags(self) -> None:
        host = numbers(4, 6)
        tensor = paged_out(host).requires_grad_()
        loaded = saved_and_loaded([tensor.t(), tensor[1:3, ::2], tensor])
        assert loaded[0].stride() == (1, 6) and loaded[1].storage_offset() == 6
        assert loaded[2].requires_grad
        assert shares(loaded[0], loaded[2]) and shares(loaded[1], loaded[2])
        assert_same(loaded[1], host[1:3, ::2])
        assert not is_held(tensor)

    def test_save_keeps_sharing_and_separation(self) -> None:
        tensor, other = paged_out(numbers(8)), paged_out(numbers(8))
        page_out(tensor, other)
        loaded = saved_and_loaded({"a": tensor, "b": tensor[4:], "c": other, "again": tensor})
        assert shares(loaded["a"], loaded["b"]) and not shares(loaded["a"], loaded["c"])
        loaded["a"][5] = 100
        assert loaded["b"][1].item() == 100 and loaded["c"][5].item() == 6
        assert not is_held(tensor) and not is_held(other)

    def test_save_of_many_tensors_with_paging_in_between(self) -> None:
        """Equal addresses at different times must not be taken for shared storages."""
        tensors = [paged_out(numbers(512) + i) for i in range(20)]

        class PagesOut:
            def __reduce__(self) -> Any:
                torch.cuda.reclaim_inactive()
                return (int, (0,))

        mixed = [item for tensor in tensors for item in (tensor, PagesOut())]
        loaded = saved_and_loaded(mixed, weights_only=False)
        for i, tensor in enumerate(loaded[::2]):
            assert_same(tensor, numbers(512) + i)

    def test_legacy_format(self) -> None:
        tensor = paged_out(numbers(8))
        file = io.BytesIO()
        torch.save([tensor, tensor[2:]], file, _use_new_zipfile_serialization=False)
        file.seek(0)
        loaded = torch.load(file)
        assert_same(loaded[0], numbers(8))
        assert shares(*loaded)
        assert not is_held(tensor)

    def test_state_dict(self) -> None:
        model = tied_model()
        expected = {name: value.cpu() for name, value in model.state_dict().items()}
        page_out(*model.parameters())
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        assert not any(is_held(value) for value in model.state_dict().values() if value.numel() > 1)
        file.seek(0)
        loaded = torch.load(file)
        for name, value in loaded.items():
            assert_same(value, expected[name])
        assert shares(loaded["0.weight"], loaded["2.weight"])
        assert shares(loaded["0.weight"], loaded["row"])

        fresh = tied_model()
        with torch.no_grad():
            for parameter in fresh.parameters():
                parameter.zero_()
        torch.cuda.reclaim_inactive()
        assert not fresh.load_state_dict(loaded).missing_keys
        for name, value in fresh.state_dict().items():
            assert_same(value, expected[name])
        torch.cuda.reclaim_inactive()
        fresh.load_state_dict(loaded, assign=True)
        for name, value in fresh.state_dict().items():
            assert_same(value, expected[name])

    def test_whole_model(self) -> None:
        model = tied_model()
        page_out(*model.parameters())
        loaded = saved_and_loaded(model, weights_only=False)
        assert loaded[0].weight is loaded[2].weight
        x = torch.tensor([1, 5, 7], device="cuda")
        torch.cuda.reclaim_inactive()
        assert_same(loaded.eval()(x), model.eval()(x))
        assert not is_held(model[0].weight)

    def test_optimizer_state(self) -> None:
        model = nn.Linear(7, 5).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        model(numbers(2, 7).cuda()).sum().backward()
        optimizer.step()
        torch.cuda.reclaim_inactive()
        expected = copy.deepcopy(optimizer.state_dict())
        torch.cuda.reclaim_inactive()
        loaded = saved_and_loaded(optimizer.state_dict())
        for index, state in expected["state"].items():
            for name, value in state.items():
                assert_same(loaded["state"][index][name], value)
        other = torch.optim.AdamW(model.parameters(), foreach=True)
        torch.cuda.reclaim_inactive()
        other.load_state_dict(loaded)
        model(numbers(2, 7).cuda()).sum().backward()
        other.step()

    def test_checkpoint_in_a_loop_holds_nothing(self) -> None:
        model = tied_model()
        before = lms.stats()["pinned_bytes.all.current"]
        for _ in range(3):
            saved_and_loaded(model.state_dict())
            copy.deepcopy(model)
            pickle.dumps(model)
        assert lms.stats()["pinned_bytes.all.current"] == before

    def test_copy(self) -> None:
        tensor = paged_out(numbers(6))
        shallow = copy.copy(tensor)
        assert shares(shallow, tensor)
        assert_same(shallow, numbers(6))
        page_out(tensor)
        storage = copy.copy(tensor.untyped_storage())
        assert storage.nbytes() == 24
        assert not is_held(tensor)

    def test_deepcopy(self) -> None:
        tensor = paged_out(numbers(6))
        deep = copy.deepcopy(tensor)
        assert not shares(deep, tensor)
        assert_same(deep, numbers(6))
        page_out(tensor, deep)
        first, view = copy.deepcopy([tensor, tensor[2:]])
        assert shares(first, view)
        assert_same(view, numbers(6)[2:])
        page_out(tensor)
        parameter = copy.deepcopy(nn.Parameter(tensor))
        assert isinstance(parameter, nn.Parameter) and parameter.requires_grad
        assert_same(parameter, numbers(6))
        page_out(tensor)
        assert copy.deepcopy(tensor.untyped_storage()).tolist() == tensor.untyped_storage().tolist()

    def test_deepcopy_of_a_module_with_gradients(self) -> None:
        model = tied_model()
        model(torch.tensor([1, 2, 3], device="cuda")).sum().backward()
        torch.cuda.reclaim_inactive()
        copied = copy.deepcopy(model)
        assert copied[0].weight is copied[2].weight
        for (name, value), other in zip(model.named_parameters(), copied.parameters(), strict=True):
            torch.cuda.reclaim_inactive()
            assert_same(other, value)
            assert other.grad is None  # upstream copies no gradient of a Parameter
            assert not shares(other, value), name
        assert not is_held(model[0].weight)

    def test_pickle(self) -> None:
        tensor = paged_out(numbers(4, 3))
        assert_same(pickle.loads(pickle.dumps(tensor)), numbers(4, 3))
        page_out(tensor)
        parameter = pickle.loads(pickle.dumps(nn.Parameter(tensor, requires_grad=False)))
        assert isinstance(parameter, nn.Parameter) and not parameter.requires_grad
        page_out(tensor)
        assert_same(pickle.loads(pickle.dumps(tensor.t())), numbers(4, 3).t())
        assert not is_held(tensor)

    def test_storage_file_round_trip(self) -> None:
        import tempfile

        tensor = paged_out(numbers(10))
        with tempfile.TemporaryFile() as file:
            tensor.untyped_storage()._write_file(file, True, True, 1)
            file.seek(0)
            back = torch.UntypedStorage._new_with_file(file, 1)
        assert back.tolist() == numbers(10).view(torch.uint8).tolist()
        assert_same(tensor, numbers(10))

    def test_safe_iteration_over_state_by_address(self) -> None:
        """Tools that group tensors by data_ptr() still see who shares with whom."""
        model = tied_model()
        torch.cuda.reclaim_inactive()
        groups: dict[int, list[str]] = {}
        for name, value in model.state_dict().items():
            groups.setdefault(value.untyped_storage().data_ptr(), []).append(name)
        shared = [set(group) for group in groups.values() if len(group) > 1]
        assert shared == [{"0.weight", "row", "2.weight"}], shared
        assert not any(is_held(value) for value in model.state_dict().values())


if __name__ == "__main__":
    lms.set_enabled_lms(True)
    run_tests()
