"""Operators with kernels for sparse and nested tensors, which consist of several storages.

Usage: layouts.py LIBRARY [TEST...]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from harness import TestCase, assert_same, is_held, lms, numbers, page_out, run_tests
from torch import Tensor

torch.ops.load_library(sys.argv.pop(1))
LAYOUTS = torch.ops.layouts

COUNT = 1000
ROWS = 50


def coo() -> Tensor:
    indices = torch.stack([torch.arange(COUNT) % ROWS, torch.arange(COUNT)]).cuda()
    return torch.sparse_coo_tensor(indices, numbers(COUNT).cuda(), (ROWS, COUNT))


def csr() -> Tensor:
    ends = torch.arange(0, COUNT + 1, COUNT // ROWS).cuda()
    columns = torch.arange(COUNT).cuda() % (COUNT // ROWS)
    return torch.sparse_csr_tensor(ends, columns, numbers(COUNT).cuda(), (ROWS, COUNT))


def members(tensor: Tensor) -> list[Tensor]:
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]


def made_of(number: int, count: int) -> Tensor:
    torch.cuda.reset_peak_memory_stats()
    indices = torch.arange(count, device="cuda").unsqueeze(0)
    values = torch.full((count,), float(number), device="cuda")
    return torch.sparse_coo_tensor(indices, values, (count,))


class TestLayouts(TestCase):
    def test_results(self) -> None:
        for make in (coo, csr):
            tensor = make()
            before = [member.cpu() for member in members(tensor)]
            page_out(*members(tensor))
            result = LAYOUTS.twice(tensor)
            page_out(*members(tensor), *members(result))
            *where, values = members(result)
            assert_same(values, numbers(COUNT) * 2)
            for member, host in zip(where, before):
                assert_same(member, host)
            assert not any(map(is_held, [*members(tensor), *members(result)]))

    def test_writing(self) -> None:
        for make in (coo, csr):
            tensor = make()
            for factor in (2, 4):
                page_out(*members(tensor))
                LAYOUTS.double_(tensor)
                page_out(*members(tensor))
                assert_same(members(tensor)[-1], numbers(COUNT) * factor)

    def test_dense_tensors_beside_them(self) -> None:
        for make in (coo, csr):
            dense, tensor = numbers(COUNT).cuda(), make()
            page_out(dense, *members(tensor))
            result = LAYOUTS.add(dense, tensor)
            page_out(dense, result)
            assert_same(result, numbers(COUNT) * 2)

    def test_nested(self) -> None:
        parts = [numbers(3, 7).cuda(), numbers(5, 7).cuda()]
        tensor = torch.nested.nested_tensor(parts)
        for factor in (2, 4):
            torch.cuda.reclaim_inactive()
            with torch._C._AutoDispatchBelowAutograd():  # which asks for a formula
                LAYOUTS.double_(tensor)
            torch.cuda.reclaim_inactive()
            for part, whole in zip(tensor.unbind(), parts):
                assert_same(part, whole.cpu() * factor)

    def test_dense_tensors_alone(self) -> None:
        dense = numbers(COUNT).cuda()
        page_out(dense)
        assert_same(LAYOUTS.twice(dense), numbers(COUNT) * 2)

    def test_limits(self) -> None:
        """Their storages take turns on the device, as others do."""
        mib = 1 << 20
        torch.cuda.set_limit_lms(40 * mib)
        tensors = [made_of(i, 2 * mib) for i in range(8)]
        for _ in range(2):
            for tensor in tensors:
                LAYOUTS.double_(tensor)
        for i, tensor in enumerate(tensors):
            assert tensor._values().eq(4 * i).all()
        assert torch.cuda.max_memory_reserved() <= 40 * mib
        torch.cuda.set_limit_lms(0)

    def test_off(self) -> None:
        torch.cuda.set_enabled_lms(False)
        each: list[Callable[[], Tensor]] = [coo, csr]
        for make in each:
            assert_same(members(LAYOUTS.twice(make()))[-1], numbers(COUNT) * 2)
        torch.cuda.set_enabled_lms(True)


if __name__ == "__main__":
    lms.set_enabled_lms(True)
    run_tests()
