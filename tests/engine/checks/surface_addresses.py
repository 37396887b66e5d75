"""What happens when the address of a paged-out tensor is taken: the bytes are there, and stay."""

import io
import itertools
from typing import Any

import torch
import torch.utils.dlpack
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
from torch._subclasses import FakeTensorMode


class Address:
    """A consumer of an address that is no operator: PyTorch's own import of the protocol."""

    def __init__(self, address: int, shape: tuple[int, ...]) -> None:
        self.__cuda_array_interface__ = {
            "typestr": "<f4",
            "shape": shape,
            "strides": None,
            "data": (address, False),
            "version": 2,
        }


def seen_at(address: int, *shape: int) -> torch.Tensor:
    return torch.as_tensor(Address(address, shape), device="cuda").cpu()


class TestSurfaceAddresses(TestCase):
    def test_data_ptr(self) -> None:
        host = numbers(7, 3)
        tensor = paged_out(host)
        address = tensor.data_ptr()
        assert address != 0
        assert is_held(tensor)
        assert tensor.data_ptr() == address
        assert_same(seen_at(address, 7, 3), host)
        tensor.mul_(2)
        assert_same(seen_at(address, 7, 3), host * 2)
        assert tensor[2].data_ptr() == address + 2 * 3 * 4
        assert tensor.untyped_storage().data_ptr() == address
        assert tensor.storage().data_ptr() == address

    def test_data_ptr_of_a_view(self) -> None:
        host = numbers(8, 4)
        tensor = paged_out(host)
        row = tensor[3]
        address = row.data_ptr()
        assert_same(seen_at(address, 4), host[3])
        assert is_held(tensor) and is_held(row)
        assert tensor.data_ptr() == address - 3 * 4 * 4

    def test_storage_data_ptr(self) -> None:
        for pointer_of in (
            lambda t: t.storage().data_ptr(),
            lambda t: (
                t.storage()._data_ptr() if hasattr(t.storage(), "_data_ptr") else t.data_ptr()
            ),
        ):
            tensor = paged_out(numbers(6))
            address = pointer_of(tensor)
            assert_same(seen_at(address, 6), numbers(6))
            assert is_held(tensor)

    def test_address_of_a_storage_is_there_to_compare(self) -> None:
        """It tells storages apart for their whole life, wherever they are, and holds nothing."""
        tensors = [paged_out(numbers(301 + i)) for i in range(8)]
        storages = [tensor.untyped_storage() for tensor in tensors]
        addresses = [storage.data_ptr() for storage in storages]
        torch.cuda.reclaim_inactive()
        for tensor, address in zip(tensors, addresses, strict=True):
            tensor.add_(0)
            assert tensor[7:].untyped_storage().data_ptr() == address
            assert address % 512 == 0 and 0 < address < 1 << 63
            assert not is_held(tensor)
        ranges = sorted((a, a + s.nbytes()) for a, s in zip(addresses, storages, strict=True))
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(ranges))
        assert paged_out(numbers(301)).untyped_storage().data_ptr() not in addresses
        assert torch.UntypedStorage(0, device="cuda").data_ptr() == 0

    def test_address_of_a_held_storage_is_the_tensors(self) -> None:
        tensor = paged_out(numbers(6))
        storage = tensor.untyped_storage()
        compared = storage.data_ptr()
        address = tensor.data_ptr()
        assert storage.data_ptr() == address != compared
        assert tensor[2:].data_ptr() == storage.data_ptr() + 8
        assert_same(seen_at(storage.data_ptr(), 6), numbers(6))

    def test_address_to_compare_of_a_loaded_tensor(self) -> None:
        """A storage that no operator has touched does not change its address by being touched."""
        file = io.BytesIO()
        torch.save(paged_out(numbers(6)), file)
        file.seek(0)
        loaded = torch.load(file)
        address = loaded.untyped_storage().data_ptr()
        loaded.add_(0)
        page_out(loaded)
        assert loaded.untyped_storage().data_ptr() == address
        assert not is_held(loaded)

    def test_data_ptr_of_a_resident_tensor(self) -> None:
        tensor = numbers(6).cuda()  # resident, except under chaos
        address = tensor.data_ptr()
        assert is_held(tensor)
        assert_same(seen_at(address, 6), numbers(6))

    def test_held_only_while_it_lives(self) -> None:
        before = lms.stats()["pinned_bytes.all.current"]
        tensor = paged_out(numbers(4096))
        tensor.data_ptr()
        assert lms.stats()["pinned_bytes.all.current"] == before + 4096 * 4
        del tensor
        assert lms.stats()["pinned_bytes.all.current"] == before

    def test_data_ptr_of_parameters_and_gradients(self) -> None:
        parameter = torch.nn.Parameter(paged_out(numbers(5)))
        (parameter * 3).sum().backward()
        page_out(parameter, parameter.grad)
        assert_same(seen_at(parameter.grad.data_ptr(), 5), torch.full((5,), 3.0))
        assert_same(seen_at(parameter.data_ptr(), 5), numbers(5))
        assert is_held(parameter) and is_held(parameter.grad)

    def test_cuda_array_interface(self) -> None:
        host = numbers(4, 3)
        tensor = paged_out(host)
        described = tensor.__cuda_array_interface__
        assert described["shape"] == (4, 3) and described["typestr"] == "<f4"
        assert is_held(tensor)
        address, read_only = described["data"]
        assert not read_only
        assert_same(seen_at(address, 4, 3), host)
        back = torch.as_tensor(Address(address, (4, 3)), device="cuda")
        back.add_(1)
        assert_same(tensor, host + 1)

    def test_dlpack_out(self) -> None:
        exports: list[Any] = [
            torch.utils.dlpack.to_dlpack,
            torch.to_dlpack,
            lambda t: t.__dlpack__(),
            lambda t: t.__dlpack__(stream=-1),
            lambda t: t,  # from_dlpack asks the tensor itself
        ]
        for export in exports:
            tensor = paged_out(numbers(4, 3))
            imported = torch.from_dlpack(export(tensor))
            assert is_held(tensor)
            assert_same(imported, numbers(4, 3))
            imported.mul_(2)
            assert_same(tensor, numbers(4, 3) * 2)
            assert imported.data_ptr() == tensor.data_ptr()
        assert paged_out(numbers(2)).__dlpack_device__()[1] == 0

    def test_dlpack_out_of_a_view_with_gradient(self) -> None:
        tensor = paged_out(numbers(4, 3))
        imported = torch.from_dlpack(tensor.t()[1])
        assert_same(imported, numbers(4, 3).t()[1])
        raises(BufferError, lambda: torch.from_dlpack(paged_out(numbers(2)).requires_grad_()))

    def test_dlpack_in(self) -> None:
        source = numbers(6).cuda()
        address = source.data_ptr()
        imported = torch.from_dlpack(torch.utils.dlpack.to_dlpack(source))
        total = (imported * 2).sum()
        torch.cuda.reclaim_inactive()
        assert lms.is_resident(imported), "LMS took memory that is not the allocator's to move"
        assert imported.data_ptr() == address and total.item() == numbers(6).sum().item() * 2

    def test_as_tensor_shares_no_move(self) -> None:
        tensor = paged_out(numbers(6))
        assert torch.as_tensor(tensor).data_ptr() == tensor.data_ptr()
        assert torch.asarray(tensor, copy=False).data_ptr() == tensor.data_ptr()

    def test_pin_gives_addresses(self) -> None:
        tensor = paged_out(numbers(6))
        with lms.pin(tensor):
            torch.cuda.reclaim_inactive()
            assert lms.is_resident(tensor)
            assert tensor.untyped_storage()[0] == 0
        assert not is_held(tensor)

    def test_handles_cannot_be_made_up(self) -> None:
        """What stands for a pin or a storage among arguments is never taken for an address."""
        ops = torch.ops.lms
        tensor = paged_out(numbers(6))
        storage = tensor.untyped_storage()
        first, second = ops.pin(storage), ops.pin(storage)
        assert 0 not in (first, second) and first != second
        for wrong in (1, 8, -1, first + 1, storage._cdata, storage.data_ptr(), (1 << 63) - 1):
            raises(RuntimeError, lambda wrong=wrong: ops.unpin(wrong), "unpin", str(wrong))
        ops.unpin(first)
        raises(RuntimeError, lambda: ops.unpin(first), "unpin", str(first))
        assert is_held(tensor)  # by the other one
        ops.unpin(second)
        assert not is_held(tensor)
        assert ops.pin(numbers(6).untyped_storage()) == 0  # on the host nothing is managed
        ops.unpin(0)
        for name in ("pin", "hold", "identity", "adopt", "release", "is_resident", "let_cross"):
            raises(RuntimeError, lambda name=name: getattr(ops, name)(storage._cdata), "Storage")

    def test_pin_under_modes(self) -> None:
        """Modes that see operators get a pin's as well, and pass them on."""
        from torch.utils._python_dispatch import TorchDispatchMode

        class Passing(TorchDispatchMode):
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                return func(*args, **(kwargs or {}))

        for mode in (FakeTensorMode(), Passing()):
            tensor = paged_out(numbers(6))
            with mode, lms.pin(tensor):
                torch.cuda.reclaim_inactive()
                assert lms.is_resident(tensor)
            assert not is_held(tensor)
            with mode:
                assert tensor.data_ptr() != 0
            assert is_held(tensor)
        with FakeTensorMode(), lms.pin(torch.ones(6, device="cuda")):
            pass  # it has no bytes to keep

    def test_pin_in_compiled_code(self) -> None:
        def function(x: torch.Tensor) -> torch.Tensor:
            with lms.pin(x):
                return x * 2

        tensor = paged_out(numbers(6))
        with lms.pin(tensor):
            assert_same(torch.compile(function, backend="aot_eager")(tensor), numbers(6) * 2)
        assert not is_held(tensor)

    def test_pointer_identity_without_holding(self) -> None:
        tensor = paged_out(numbers(6))
        other = paged_out(numbers(6))
        page_out(tensor, other)
        assert tensor.untyped_storage()._cdata == tensor[2:].untyped_storage()._cdata
        assert tensor.untyped_storage()._cdata != other.untyped_storage()._cdata
        assert torch._C._is_alias_of(tensor, tensor[2:])
        assert not torch._C._is_alias_of(tensor, other)
        assert not is_held(tensor) and not is_held(other)

    def test_questions_of_compilers(self) -> None:
        """Inductor and Dynamo ask whether inputs are aligned, or the same: none is held."""
        from torch._dynamo.utils import clone_input
        from torch._inductor import utils

        guards = torch._C._dynamo.guards
        base = paged_out(numbers(65))
        aligned, odd = paged_out(numbers(64)), base[1:]
        inputs = [aligned, odd]
        page_out(aligned, odd)
        utils.copy_misaligned_inputs(inputs, [0, 1])
        assert inputs[0] is aligned and inputs[1] is not odd
        assert_same(inputs[1], numbers(65)[1:])
        page_out(aligned, *inputs)
        assert utils.remove_unaligned_input_idxs([aligned, odd], [0, 1]) == [0]
        assert utils.remove_unaligned_input_idxs([aligned, inputs[1]], [0, 1]) == [0, 1]
        assert utils.is_same_tensor(odd, base[1:])
        assert not utils.is_same_tensor(aligned, inputs[1])
        for tensor in (aligned, odd):
            guards.assert_size_stride(tensor, (64,), (1,))
            clone = clone_input(tensor)
            assert_same(clone, tensor)
            assert (clone.storage_offset() - tensor.storage_offset()) % 8 == 0, "aligned otherwise"
        if hasattr(guards, "assert_alignment"):  # since 2.7
            guards.assert_alignment(aligned, 16)
            raises(AssertionError, lambda: guards.assert_alignment(odd, 16))
        assert not any(map(is_held, (aligned, base, inputs[1], clone)))

    def test_sharing_with_other_processes(self) -> None:
        from torch.multiprocessing.reductions import reduce_tensor

        tensor = paged_out(numbers(64))
        reduce_tensor(tensor)
        assert is_held(tensor)
        assert_same(tensor, numbers(64))
        assert tensor.share_memory_() is tensor  # upstream does nothing for CUDA tensors
        assert tensor.untyped_storage().share_memory_() is not None
        assert_same(tensor, numbers(64))

    def test_record_stream(self) -> None:
        side = torch.cuda.Stream()
        tensor = paged_out(numbers(1 << 16))
        tensor.record_stream(side)
        with torch.cuda.stream(side):
            total = tensor.sum()
        side.synchronize()
        assert total.item() == numbers(1 << 16).sum().item()
        page_out(tensor)
        tensor.record_stream(side)
        assert_same(tensor, numbers(1 << 16))
        del tensor
        torch.cuda.synchronize()


if __name__ == "__main__":
    lms.set_enabled_lms(True)
    run_tests()
