"""Where workspaces of cuBLAS lie, which stay until the program ends."""

from __future__ import annotations

import torch
from harness import TestCase, assert_same, lms, numbers, run_tests

MIB = 1 << 20
LARGE = 16 * MIB  # bytes of a tensor
APART = 20 * MIB  # bytes of a segment that holds several
# Bytes: CUBLAS_WORKSPACE_CONFIG=:1024:2:16:8, CUBLASLT_WORKSPACE_SIZE=2048.
WORKSPACE, WORKSPACE_OF_LT = 2 * MIB + 16 * 8 * 1024, 2 * MIB

torch.cuda.set_enabled_lms(True)


def workspaces(size: int = WORKSPACE) -> list[int]:
    """Bytes of the segments that they lie in."""
    return [
        segment["total_size"]
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if block["size"] == size and block["state"] == "active_allocated"
    ]


def product() -> tuple[torch.Tensor, torch.Tensor]:
    """What a thread of its own multiplies for, in the backward pass."""
    factor = numbers(64, 64).cuda().requires_grad_()
    return factor, (factor @ factor).sum()


def assert_multiplies() -> None:
    factor = numbers(64, 64)
    assert_same(factor.cuda() @ factor.cuda(), factor @ factor)


def fill_all() -> list[torch.Tensor]:
    """More than fits: memory is one segment then."""
    count = 3 * torch.cuda.mem_get_info()[1] // 2 // LARGE
    return [numbers(LARGE // 4).cuda().add_(i) for i in range(count)]


class TestWorkspacesOfCublas(TestCase):
    def test_one_of_a_thread_that_comes_late_does_not_divide_memory(self) -> None:
        factor, total = product()
        tensors = fill_all()
        largest = max(segment["total_size"] for segment in torch.cuda.memory_snapshot())
        assert largest > torch.cuda.get_limit_lms() * 3 // 4, "memory was to become one segment"
        total.backward()
        same = factor.detach().cpu().requires_grad_()
        (same @ same).sum().backward()
        assert_same(factor.grad, same.grad)
        # So nearly all of it can be one tensor.
        assert not torch.zeros(largest - MIB, dtype=torch.uint8, device="cuda").any()
        for i, tensor in enumerate(tensors):
            assert_same(tensor, numbers(LARGE // 4) + i)

    def test_each_stream_has_one_apart(self) -> None:
        tensors = fill_all()
        before = len(workspaces())
        for _ in range(2):
            with torch.cuda.stream(torch.cuda.Stream()):
                assert_multiplies()
        assert workspaces() == [APART] * (before + 2)
        del tensors

    def test_those_that_are_cleared_are_made_apart_again(self) -> None:
        assert_multiplies()
        tensors = fill_all()
        torch._C._cuda_clearCublasWorkspaces()
        assert workspaces() == []
        for _ in range(2):
            assert_multiplies()
        assert workspaces() == [APART]
        del tensors

    def test_so_has_cublaslt(self) -> None:
        """Which has one of its own that stays in PyTorch 2.9 and some later ones."""
        tensors = fill_all()
        before = len(workspaces(WORKSPACE_OF_LT))
        linear = torch.nn.Linear(64, 64)
        with torch.cuda.stream(torch.cuda.Stream()):
            linear.cuda()(numbers(64, 64).cuda())
        found = workspaces(WORKSPACE_OF_LT)
        assert found == [APART] * len(found)
        version = [int(part) for part in torch.__version__.split(".")[:2]]
        assert len(found) > before or not [2, 9] <= version <= [2, 11]
        del tensors

    def test_without_room_for_a_segment_it_lies_where_it_can(self) -> None:
        limit = torch.cuda.get_limit_lms()
        try:
            lms.set_limit_lms(64 * MIB)
            tensors = [numbers(LARGE // 4).cuda() for _ in range(8)]
            for _ in range(APART // WORKSPACE + 1):
                with torch.cuda.stream(torch.cuda.Stream()):
                    assert_multiplies()
            assert max(workspaces()) > APART
            assert torch.cuda.memory_reserved() <= 64 * MIB
            for tensor in tensors:
                assert_same(tensor, numbers(LARGE // 4))
        finally:
            lms.set_limit_lms(limit)


if __name__ == "__main__":
    run_tests()
