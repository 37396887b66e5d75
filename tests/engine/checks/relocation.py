"""Storages that are moved within the device, where free memory is only in pieces."""

from collections.abc import Sequence

import torch
from harness import TestCase, lms, refusals, run_tests, skip_without_second_device

COUNT = 1 << 20  # elements of 4 bytes
DEVICE = 1
refused = refusals()


def full(count: int, value: float) -> torch.Tensor:
    return torch.full((count,), value, device=f"cuda:{DEVICE}")


def expect_room_in_pieces(
    sizes: Sequence[int], gaps: Sequence[int], wanted: int, moves: int
) -> None:
    """Makes room for `wanted` by moving so many storages, and copies nothing to the host.

    Args:
        sizes: of the storages in the memory, in units of COUNT. What is behind them is in use.
        gaps: which of them are freed before that.
    """
    let_memory_run_short()  # it is one segment then
    expect_moves(sizes, gaps, wanted, moves)


def let_memory_run_short() -> None:
    more = [full(8 * COUNT, 0.0) for _ in range(20)]
    torch.cuda.reclaim_inactive()
    del more


def expect_moves(sizes: Sequence[int], gaps: Sequence[int], wanted: int, moves: int) -> None:
    storages: list[torch.Tensor | None]
    storages = [full(size * COUNT, float(i)) for i, size in enumerate(sizes)]
    rest = full(lms.stats(DEVICE)["lms.free_bytes.largest"] // 4, -1.0)
    for gap in gaps:
        storages[gap] = None
    before = torch.cuda.memory_stats(DEVICE)
    refused.clear()
    result = full(wanted * COUNT, 0.5)
    after = torch.cuda.memory_stats(DEVICE)
    assert after["lms.moved.copies"] - before["lms.moved.copies"] == moves
    assert after["lms.page_out.copies"] == before["lms.page_out.copies"]
    # No allocation failed on the way: each would also give back what the allocator has cached.
    assert after["num_alloc_retries"] == before["num_alloc_retries"]
    assert refused == []
    for i, storage in enumerate(storages):
        assert storage is None or storage.eq(i).all()
    assert rest.eq(-1).all()
    assert result.eq(0.5).all()


class TestRelocation(TestCase):
    def setUp(self) -> None:
        super().setUp()
        skip_without_second_device()

    def test_what_lies_between_gaps_goes_to_another(self) -> None:
        expect_room_in_pieces([2, 1, 2, 5, 1, 5], gaps=[0, 2, 4], wanted=5, moves=1)

    def test_a_gap_is_made_for_what_fits_no_other(self) -> None:
        # What has 3 lies between gaps, and moves to where 1 and a gap of 2 were.
        expect_room_in_pieces([2, 3, 2, 5, 2, 1, 5, 1, 5], gaps=[0, 2, 4, 7], wanted=6, moves=2)

    def test_what_is_cleared_is_not_filled_again(self) -> None:
        # What has 1 would fit best where what has 3 is to leave.
        sizes = [1, 3, 2, 5, 2, 1, 5, 2, 5]
        expect_room_in_pieces(sizes, gaps=[0, 2, 4, 7], wanted=6, moves=2)

    def test_beside_memory_of_other_streams(self) -> None:
        """None has more than half of it, so it is not taken as one segment."""
        torch.cuda.empty_cache()  # else it would be lent of the one segment
        others = []
        for _ in range(2):
            side = torch.cuda.Stream(DEVICE)
            with torch.cuda.device(DEVICE), torch.cuda.stream(side):
                others.append(full(15 * COUNT, 3.0))
            others[-1].data_ptr()  # it stays, and its segment of 60 MiB
        lms.set_limit_lms(236 << 20, DEVICE)  # no more than those and what follows
        let_memory_run_short()
        torch.cuda.empty_cache()
        whole = full(25 * COUNT, 0.0)
        del whole
        expect_moves([2, 1, 2, 5, 1, 5], gaps=[0, 2, 4], wanted=5, moves=1)
        for other in others:
            assert other.eq(3).all()
        lms.set_limit_lms(0, DEVICE)


if __name__ == "__main__":
    torch.cuda.set_enabled_lms(True)
    run_tests()
