"""How large a workspace can be, as cuDNN's benchmark mode is told.

Usage: workspaces.py LIBRARY [TEST...]
"""

from __future__ import annotations

import sys

import torch
from harness import TestCase, assert_same, lms, numbers, page_out, run_tests

torch.ops.load_library(sys.argv.pop(1))
torch.cuda.init()
torch.cuda.set_enabled_lms(True)

MIB = 1 << 20
LIMIT = 64 * MIB
SIZES = [MIB, 4 * MIB, 16 * MIB, 40 * MIB, 56 * MIB, 80 * MIB, 200 * MIB]  # of algorithms


def largest(guess: int = 0) -> int:
    result: int = torch.ops.workspaces.largest_block(0, guess)
    return result


def usable() -> list[int]:
    """The algorithms among which a benchmark looks for the quickest."""
    return [size for size in SIZES if size <= largest()]


def filled(limit: int) -> list[torch.Tensor]:
    """Twice as much as the limit, of which half is paged out."""
    lms.set_limit_lms(limit)
    count = 2 * limit // (4 * MIB)
    return [numbers(MIB).cuda().add_(i) for i in range(count)]


def assert_kept(tensors: list[torch.Tensor]) -> None:
    for i, tensor in enumerate(tensors):
        assert_same(tensor, numbers(MIB) + i)


class TestWorkspaces(TestCase):
    def test_the_same_algorithms_on_and_off(self) -> None:
        torch.cuda.set_enabled_lms(False)
        torch.cuda.empty_cache()
        off = usable()
        torch.cuda.set_enabled_lms(True)
        lms.set_limit_lms(0)
        assert usable() == off
        tensors = filled(lms.get_limit_lms())
        assert usable() == off
        assert off[-1] == SIZES[-1]
        assert_kept(tensors)

    def test_what_is_resident_does_not_matter(self) -> None:
        lms.set_limit_lms(LIMIT)
        empty = largest()
        tensors = filled(LIMIT)
        assert largest() == empty
        page_out(*tensors)
        assert largest() == empty
        assert_kept(tensors)
        assert largest() == empty

    def test_what_is_told_can_be_had(self) -> None:
        for limit in (40 * MIB, LIMIT, 200 * MIB):
            tensors = filled(limit)
            assert limit * 3 // 4 <= largest() <= limit
            for _ in range(3):
                torch.empty(largest(), dtype=torch.uint8, device="cuda").zero_()
            assert_kept(tensors)

    def test_what_cannot_leave_is_taken_off(self) -> None:
        tensors = filled(LIMIT)
        before = largest()
        held = numbers(4 * MIB).cuda()
        held.data_ptr()
        assert largest() == before - 16 * MIB
        with lms.pin(tensors[0]):
            assert largest() == before - 20 * MIB
        others = numbers(6 * MIB).cuda()
        others.data_ptr()
        torch.empty(largest(), dtype=torch.uint8, device="cuda")
        del held, others
        assert largest() == before
        assert_kept(tensors)

    def test_an_operator_gets_what_is_free_in_pieces(self) -> None:
        """And no chance to take another algorithm."""
        filled(LIMIT)  # it is one segment then
        sizes = (20 * MIB, 18 * MIB, 20 * MIB)
        _, middle, _ = tensors = [numbers(size // 4).cuda() for size in sizes]
        for _ in range(2):
            assert torch.special.airy_ai(middle).item() == 1
        assert_same(middle, numbers(sizes[1] // 4))
        del tensors
        large = numbers(40 * MIB // 4).cuda()  # beside it there are no 28 MiB
        assert torch.special.airy_ai(large).item() == 0

    def test_a_guess_is_a_least_answer(self) -> None:
        lms.set_limit_lms(LIMIT)
        assert largest(guess=1) == largest()
        assert largest(guess=500 * MIB) == 500 * MIB


if __name__ == "__main__":
    torch.cuda.set_enabled_lms(True)
    run_tests()
