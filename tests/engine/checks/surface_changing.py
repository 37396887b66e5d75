"""Changing a paged-out tensor: in place, its storage, its data, its gradient, its identity."""

import gc
import weakref
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
from torch import nn


class Tagged(torch.Tensor):
    """A subclass as users write them: it goes through __torch_function__."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


class Wrapper(torch.Tensor):
    """A wrapper subclass: no storage of its own, an inner tensor does the work."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Wrapper":
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def unwrap(value: Any) -> Any:
            return value.inner if isinstance(value, Wrapper) else value

        result = func(*[unwrap(arg) for arg in args], **(kwargs or {}))
        return cls(result) if isinstance(result, torch.Tensor) else result


class TestSurfaceChanging(TestCase):
    def test_in_place_on_views(self) -> None:
        host = numbers(4, 6)
        tensor = paged_out(host)
        for change in (
            lambda x: x[1].add_(10),
            lambda x: x.t()[2].zero_(),
            lambda x: x.__setitem__((slice(None), 3), 5.0),
            lambda x: x.__setitem__((0, 0), torch.tensor(9.0)),
            lambda x: x.as_strided((2, 2), (7, 2)).mul_(3),
            lambda x: x.view(-1)[5:9].copy_(torch.ones(4)),
            lambda x: x.diagonal().fill_(-1),
            lambda x: x.index_fill_(0, torch.tensor([3], device=x.device), 8.0),
            lambda x: x.masked_fill_(x > 20, 20.0),
            lambda x: x.t_(),
            lambda x: x.unsqueeze_(0),
            lambda x: x.squeeze_(0),
        ):
            change(host)
            page_out(tensor)
            change(tensor)
            page_out(tensor)
            assert_same(tensor, host)

    def test_out_argument(self) -> None:
        one, target = paged_out(numbers(6)), paged_out(torch.zeros(6))
        page_out(one, target)
        assert torch.add(one, one, out=target) is target
        page_out(target)
        assert_same(target, numbers(6) * 2)
        empty = torch.empty(0, device="cuda")
        torch.add(one, one, out=empty)
        page_out(empty)
        assert_same(empty, numbers(6) * 2)

    def test_resize_tensor(self) -> None:
        tensor = paged_out(numbers(6))
        tensor.resize_(2, 2)
        assert_same(tensor, numbers(6)[:4].view(2, 2))
        page_out(tensor)
        tensor.resize_(1000)
        assert_same(tensor[:6], numbers(6))
        tensor.fill_(3)
        page_out(tensor)
        assert_same(tensor, torch.full((1000,), 3.0))
        tensor.resize_(0)
        assert tensor.tolist() == []
        tensor.resize_(6).fill_(1)
        assert_same(tensor, torch.ones(6))
        other = paged_out(numbers(4))
        other.resize_as_(tensor)
        assert_same(other[:4], numbers(4))

    def test_resize_storage_to_nothing_and_back(self) -> None:
        """As FSDP frees and restores its flat parameter."""
        parameter = nn.Parameter(paged_out(numbers(64)))
        view = parameter.detach()[8:16]
        storage = parameter.untyped_storage()
        for round_ in range(3):
            page_out(parameter)
            storage.resize_(0)
            assert storage.nbytes() == 0 and parameter.shape == (64,)
            torch.cuda.reclaim_inactive()
            storage.resize_(64 * 4)
            assert storage.nbytes() == 256
            parameter.detach().copy_(numbers(64) + round_)
            page_out(parameter)
            assert_same(parameter, numbers(64) + round_)
            assert_same(view, numbers(64)[8:16] + round_)
        before = lms.stats()["lms.managed_bytes.all.current"]
        storage.resize_(0)
        del parameter, view, storage
        gc.collect()
        assert lms.stats()["lms.managed_bytes.all.current"] <= before

    def test_resize_storage_grows_and_keeps_data(self) -> None:
        tensor = paged_out(numbers(8))
        tensor.untyped_storage().resize_(64)
        assert_same(tensor, numbers(8))
        torch.cuda.reclaim_inactive()
        tensor.untyped_storage().resize_(16)
        assert_same(tensor[:4], numbers(8)[:4])
        raises(RuntimeError, lambda: paged_out(numbers(4)).untyped_storage().resize_(-1))

    def test_set(self) -> None:
        source, target = paged_out(numbers(6)), paged_out(torch.zeros(3))
        page_out(source, target)
        target.set_(source)
        assert_same(target, numbers(6))
        assert target.untyped_storage()._cdata == source.untyped_storage()._cdata
        page_out(source)
        target.set_(source.untyped_storage(), 2, (2, 2), (2, 1))
        assert_same(target, numbers(6)[2:].view(2, 2))
        page_out(source)
        target.set_(source.storage())
        target.add_(1)
        assert_same(source, numbers(6) + 1)
        target.set_()
        assert target.numel() == 0
        page_out(source)
        assert_same(torch.tensor([], device="cuda").set_(source.untyped_storage()), numbers(6) + 1)

    def test_lazy_clone(self) -> None:
        host = numbers(1000)
        for tensor in (paged_out(host), host.cuda()):
            assert not torch._C._is_cow_tensor(tensor)
            clone = torch._lazy_clone(tensor)
            torch.cuda.reclaim_inactive()
            assert torch._C._is_cow_tensor(tensor) and torch._C._is_cow_tensor(clone)
            assert_same(clone, host)
            clone.add_(1)
            assert_same(tensor, host)
            tensor.mul_(2)
            page_out(tensor, clone)  # each has bytes of its own now
            assert not torch._C._is_cow_tensor(tensor) and not torch._C._is_cow_tensor(clone)
            assert_same(clone, host + 1)
            assert_same(tensor, host * 2)

    def test_data_assignment(self) -> None:
        tensor, other = paged_out(numbers(6)), paged_out(-numbers(4))
        page_out(tensor, other)
        tensor.data = other
        assert_same(tensor, -numbers(4))
        page_out(other)
        parameter = nn.Parameter(paged_out(numbers(3)))
        parameter.data = other.data
        parameter.data.mul_(2)
        assert_same(other, -numbers(4) * 2)
        page_out(other)
        parameter.data = parameter.data.cpu()
        assert parameter.device.type == "cpu"
        parameter.data = parameter.data.cuda()
        assert_same(parameter, -numbers(4) * 2)
        page_out(parameter)
        parameter.data = parameter.data.half()
        assert_same(parameter, (-numbers(4) * 2).half())

    def test_swap_tensors(self) -> None:
        one, other = paged_out(numbers(6)), paged_out(-numbers(4))
        page_out(one, other)
        torch.utils.swap_tensors(one, other)
        assert_same(one, -numbers(4))
        page_out(one, other)
        assert_same(other, numbers(6))
        model = nn.Linear(3, 3).cuda()
        expected = model.weight.detach().cpu()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            torch.cuda.reclaim_inactive()
            model.double()
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)
        assert_same(model.weight, expected.double())

    def test_module_conversions(self) -> None:
        model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)).cuda()
        expected = [p.detach().cpu() for p in model.parameters()]
        for convert in (
            lambda m: m.cpu(), lambda m: m.cuda(), lambda m: m.double(), lambda m: m.float(),
            lambda m: m.to("cpu"), lambda m: m.to("cuda"), lambda m: m.requires_grad_(False),
            lambda m: m.train(), lambda m: m.to(memory_format=torch.contiguous_format),
        ):  # fmt: skip
            torch.cuda.reclaim_inactive()
            convert(model)
            for parameter, value in zip(model.parameters(), expected, strict=True):
                assert_same(parameter.float(), value)
        torch.cuda.reclaim_inactive()
        model.to_empty(device="cuda")
        assert model[0].weight.shape == (4, 5)

    def test_gradients(self) -> None:
        x = paged_out(numbers(5)).requires_grad_()
        page_out(x)
        (x * x).sum().backward()
        page_out(x, x.grad)
        assert_same(x.grad, numbers(5) * 2)
        x.grad = paged_out(numbers(5))
        page_out(x, x.grad)
        (x * 3).sum().backward()
        assert_same(x.grad, numbers(5) + 3)
        x.grad.zero_()
        page_out(x.grad)
        assert_same(x.grad, torch.zeros(5))
        x.grad = None
        y = x * 2
        y.retain_grad()
        torch.cuda.reclaim_inactive()
        (y * y).sum().backward(retain_graph=True)
        torch.cuda.reclaim_inactive()
        assert_same(y.grad, numbers(5) * 4)
        (first,) = torch.autograd.grad((y * y).sum(), x, create_graph=False, retain_graph=True)
        assert_same(first, numbers(5) * 8)
        detached = x.detach()
        torch.cuda.reclaim_inactive()
        detached.add_(1)
        assert_same(x, numbers(5) + 1)

    def test_saved_tensors_are_guarded_by_version(self) -> None:
        x = paged_out(numbers(5)).requires_grad_()
        y = x.exp()
        torch.cuda.reclaim_inactive()
        version = y._version
        torch.cuda.reclaim_inactive()
        y.detach().add_(1)
        assert y._version == version + 1
        raises(RuntimeError, lambda: y.sum().backward(), "modified by an inplace operation")

    def test_tensor_hooks(self) -> None:
        seen: list[torch.Tensor] = []
        x = paged_out(numbers(5)).requires_grad_()
        x.register_hook(lambda grad: seen.append(grad) or grad * 2)
        x.register_post_accumulate_grad_hook(lambda t: torch.cuda.reclaim_inactive())
        (x * 3).sum().backward()
        assert_same(seen[0], torch.full((5,), 3.0))
        assert_same(x.grad, torch.full((5,), 6.0))

    def test_identity_survives_paging(self) -> None:
        tensor = paged_out(numbers(6))
        tensor.note = "mine"
        storage = tensor.untyped_storage()
        key = storage._cdata
        reference = weakref.ref(tensor)
        for _ in range(3):
            page_out(tensor)
            tensor.add_(1)
            assert tensor.untyped_storage()._cdata == key and tensor.note == "mine"
            assert tensor.untyped_storage() is storage or tensor.untyped_storage()._cdata == key
        assert hash(tensor) == hash(reference())
        weak = torch.multiprocessing.reductions.StorageWeakRef(storage)
        page_out(tensor)
        assert not weak.expired()
        del tensor, storage
        gc.collect()
        assert reference() is None and weak.expired()

    def test_freeing_a_paged_out_tensor_frees_host_memory(self) -> None:
        before = lms.stats()["lms.host_bytes.current"]
        tensor = paged_out(numbers(1 << 16))
        assert lms.stats()["lms.host_bytes.current"] >= before + (1 << 18)
        del tensor
        gc.collect()
        assert lms.stats()["lms.host_bytes.current"] == before
        assert lms.stats()["lms.paged_out_bytes.current"] >= 0

    def test_subclasses(self) -> None:
        tagged = numbers(6).cuda().as_subclass(Tagged)
        page_out(tagged)
        doubled = tagged * 2
        assert isinstance(doubled, Tagged)
        assert_same(doubled.as_subclass(torch.Tensor), numbers(6) * 2)
        assert tagged.data_ptr() != 0 and is_held(tagged)

        wrapped = Wrapper(paged_out(numbers(6)))
        page_out(wrapped.inner)
        result = wrapped + wrapped
        assert isinstance(result, Wrapper)
        page_out(result.inner)
        assert_same(result.inner, numbers(6) * 2)

    def test_type_conversion_of_storages(self) -> None:
        tensor = paged_out(numbers(4))
        assert tensor.storage().half().tolist() == [1, 2, 3, 4]
        page_out_again = paged_out(numbers(4)).storage()
        assert page_out_again.cpu().tolist() == [1, 2, 3, 4]
        assert paged_out(numbers(4)).untyped_storage().cuda().nbytes() == 16

    def test_host_memory_functions(self) -> None:
        tensor = paged_out(numbers(4))
        raises(RuntimeError, tensor.pin_memory)
        raises(TypeError, tensor.untyped_storage().pin_memory)
        assert_same(tensor, numbers(4))

    def test_random_and_copies_between_paged_out_tensors(self) -> None:
        torch.manual_seed(1)
        expected = torch.empty(50, device="cuda").normal_().cpu()
        target = paged_out(torch.zeros(50))
        torch.manual_seed(1)
        target.normal_()
        page_out(target)
        assert_same(target, expected)
        other = paged_out(torch.zeros(50))
        page_out(target, other)
        other.copy_(target)
        page_out(other)
        assert_same(other, expected)


if __name__ == "__main__":
    lms.set_enabled_lms(True)
    run_tests()
