"""What a paged-out tensor answers to code that reads it."""

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


class TestSurfaceReading(TestCase):
    def test_metadata_moves_nothing(self) -> None:
        host = numbers(3, 4, 5)
        tensor = paged_out(host)
        assert tensor.shape == (3, 4, 5)
        assert tensor.stride() == (20, 5, 1)
        assert tensor.device == torch.device("cuda", 0)
        assert tensor.dtype == torch.float32
        assert tensor.nbytes == 240
        assert tensor.numel() == 60 and tensor.dim() == 3 and tensor.itemsize == 4
        assert tensor.is_cuda and not tensor.is_pinned() and tensor.is_contiguous()
        assert tensor.storage_offset() == 0
        assert tensor.untyped_storage().nbytes() == 240
        assert tensor.untyped_storage().device == torch.device("cuda", 0)
        assert tensor.untyped_storage().resizable()
        assert tensor.is_shared()  # upstream says so of every CUDA tensor
        assert not lms.is_resident(tensor)

    def test_printing(self) -> None:
        host = numbers(3, 4)
        assert repr(paged_out(host)).replace(", device='cuda:0'", "") == repr(host)
        assert "cuda" in repr(paged_out(host))
        assert "..." in str(paged_out(numbers(5000)))
        assert f"{paged_out(torch.tensor(2.5)):.2f}" == "2.50"
        assert "Parameter" in repr(torch.nn.Parameter(paged_out(host)))
        assert "requires_grad=True" in repr(paged_out(host).requires_grad_())

    def test_values_on_the_host(self) -> None:
        host = numbers(3, 4)
        assert_same(paged_out(host).cpu(), host)
        assert (paged_out(host).cpu().numpy() == host.numpy()).all()
        assert paged_out(host).tolist() == host.tolist()
        assert paged_out(torch.tensor([7])).item() == 7
        assert int(paged_out(torch.tensor(7))) == 7
        assert bool(paged_out(torch.tensor(True)))
        assert len(paged_out(host)) == 3
        assert [row.tolist() for row in paged_out(host)] == host.tolist()
        assert 5.0 in paged_out(host)
        assert list(range(9))[paged_out(torch.tensor(4))] == 4
        copied = paged_out(host).to("cpu", non_blocking=True)
        torch.cuda.synchronize()
        assert_same(copied, host)
        raises(TypeError, lambda: paged_out(host).numpy(), "cpu")

    def test_it_can_leave_again_after_reading(self) -> None:
        tensor = paged_out(numbers(64))
        for _ in range(3):
            assert tensor.sum().item() == numbers(64).sum().item()
            page_out(tensor)

    def test_dtypes(self) -> None:
        dtypes = [
            torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
            torch.float16,
            torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
            torch.float8_e4m3fn, torch.uint16, torch.uint32, torch.uint64,
        ]  # fmt: skip
        for dtype in dtypes:
            host = numbers(33).to(dtype)
            tensor = paged_out(host)
            raw = tensor.view(torch.uint8)
            assert not lms.is_resident(raw)
            assert_same(raw, host.view(torch.uint8))
            page_out(tensor)
            assert_same(tensor.clone().view(torch.uint8), host.view(torch.uint8))

    def test_complex_parts_and_lazy_bits(self) -> None:
        host = torch.complex(numbers(9), -numbers(9))
        tensor = paged_out(host)
        assert_same(tensor.real, host.real)
        page_out(tensor)
        assert_same(tensor.imag, host.imag)
        page_out(tensor)
        assert_same(tensor.conj(), host.conj().resolve_conj())
        page_out(tensor)
        assert_same(torch.view_as_real(tensor), torch.view_as_real(host))

    def test_empty_tensors(self) -> None:
        empty = torch.empty(0, 3, device="cuda")
        torch.cuda.reclaim_inactive()
        assert lms.is_resident(empty) and empty.tolist() == []
        assert empty.data_ptr() == 0 and empty.untyped_storage().data_ptr() == 0
        assert (empty + 1).shape == (0, 3)
        part = paged_out(numbers(8))[4:4]
        assert part.tolist() == [] and part.sum().item() == 0

    def test_zero_dimensions(self) -> None:
        tensor = paged_out(torch.tensor(3.5))
        assert tensor.item() == 3.5
        page_out(tensor)
        assert (tensor * 2).item() == 7.0
        assert (torch.ones(3, device="cuda") * tensor).tolist() == [3.5] * 3
        page_out(tensor)
        assert (torch.ones(3) * tensor.cpu()).tolist() == [3.5] * 3
        page_out(tensor)
        assert torch.full((2,), tensor.item()).tolist() == [3.5] * 2

    def test_views_of_every_kind(self) -> None:
        host = numbers(4, 6)
        tensor = paged_out(host)
        views = {
            "t": lambda x: x.t(),
            "row": lambda x: x[1],
            "column": lambda x: x[:, 2],
            "step": lambda x: x[::2, ::3],
            "view": lambda x: x.view(2, 12),
            "reshape": lambda x: x.t().reshape(3, 8),
            "as_strided": lambda x: x.as_strided((3, 2), (7, 3), 1),
            "expand": lambda x: x[:, :1].expand(4, 5),
            "diagonal": lambda x: x.diagonal(),
            "unfold": lambda x: x.unfold(1, 3, 2),
            "narrow": lambda x: x.narrow(0, 1, 2),
            "flip": lambda x: x.flip(0),
            "select": lambda x: x.select(1, 3),
            "bytes": lambda x: x.view(torch.int32),
            "chunk": lambda x: torch.cat(x.chunk(2, 1)),
            "index": lambda x: x[torch.tensor([2, 0], device=x.device)],
            "mask": lambda x: x[x > 5],
        }
        for name, view in views.items():
            page_out(tensor)
            try:
                assert_same(view(tensor), view(host))
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from None
            page_out(tensor)
            assert_same(view(tensor).clone(), view(host).clone())

    def test_conversions(self) -> None:
        host = numbers(5, 5)
        conversions = [
            lambda x: x.half(), lambda x: x.double(), lambda x: x.bfloat16(), lambda x: x.long(),
            lambda x: x.bool(), lambda x: x.to(torch.int16), lambda x: x.to(torch.complex64),
            lambda x: x.type(torch.float64), lambda x: x.to(torch.zeros(1, dtype=torch.uint8)),
            lambda x: x.contiguous(memory_format=torch.contiguous_format),
            lambda x: x.t().contiguous(),
            lambda x: x.to("cuda", copy=True), lambda x: x.float(), lambda x: x.clone(),
            lambda x: x.detach(),
        ]  # fmt: skip
        for convert in conversions:
            assert_same(convert(paged_out(host)), convert(host.clone()))
        assert paged_out(host).type() == "torch.cuda.FloatTensor"
        assert_same(paged_out(host).type("torch.FloatTensor"), host)
        image = numbers(2, 3, 4, 4)
        channels_last = paged_out(image).to(memory_format=torch.channels_last)
        assert channels_last.is_contiguous(memory_format=torch.channels_last)
        assert_same(channels_last, image)

    def test_comparisons(self) -> None:
        host = numbers(6)
        one, other = paged_out(host), paged_out(host)
        page_out(one, other)
        assert torch.equal(one, other)
        page_out(one, other)
        assert torch.allclose(one, other)
        page_out(one, other)
        torch.testing.assert_close(one, other, rtol=0, atol=0)
        assert one is not other and one.is_set_to(one) and not one.is_set_to(other)

    def test_elements_of_a_storage(self) -> None:
        host = torch.arange(16, dtype=torch.uint8)
        tensor = paged_out(host)
        storage = tensor.untyped_storage()
        assert storage[3] == 3
        assert list(storage[4:7]) == [4, 5, 6]
        assert storage.tolist() == list(range(16))
        assert len(storage) == 16
        page_out_again = paged_out(host).storage()
        assert page_out_again[5] == 5
        assert page_out_again.tolist() == list(range(16))
        assert paged_out(host).untyped_storage().cpu().tolist() == list(range(16))
        assert paged_out(host).untyped_storage().clone().tolist() == list(range(16))
        storage = paged_out(host).untyped_storage()
        storage[0] = 99
        assert storage[0] == 99
        storage.fill_(7)
        assert storage.tolist() == [7] * 16
        assert "UntypedStorage" in repr(storage)

    def test_writing_from_and_to_the_host(self) -> None:
        tensor = paged_out(numbers(8))
        tensor.copy_(-numbers(8))
        assert_same(tensor, -numbers(8))
        page_out(tensor)
        target = torch.empty(8)
        target.copy_(tensor)
        assert_same(target, -numbers(8))
        locked = torch.empty(8).pin_memory()
        page_out(tensor)
        locked.copy_(tensor, non_blocking=True)
        torch.cuda.synchronize()
        assert_same(locked, -numbers(8))

    def test_reading_holds_nothing(self) -> None:
        tensor = paged_out(numbers(32))
        repr(tensor)
        tensor.tolist()
        tensor.cpu()
        tensor.untyped_storage()[3]
        (tensor + tensor).sum().item()
        assert not is_held(tensor)


if __name__ == "__main__":
    lms.set_enabled_lms(True)
    run_tests()
