"""A Triton kernel of the user's, launched under LMS; prints what the tests look at."""

from __future__ import annotations

import json

import torch
import triton
import triton.language as tl

BYTES = 4 << 20


@triton.jit
def add_to(total, x, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(total + at, tl.load(total + at, at < count) + tl.load(x + at, at < count), at < count)


def launch(total: torch.Tensor, x: torch.Tensor, **more: int) -> None:
    add_to[(16,)](total, x, x.numel(), block=65536, **more)


def stats() -> dict[str, int]:
    return torch.cuda.lms.stats()


def main() -> None:
    torch.cuda.set_enabled_lms(True)
    x = torch.arange(BYTES // 4, device="cuda", dtype=torch.float32)
    total = torch.ones_like(x)
    found = {}
    torch.cuda.reclaim_inactive()
    found["resident before"] = torch.cuda.lms.is_resident(total)
    launch(total, x)
    found["resident after"] = torch.cuda.lms.is_resident(total)
    torch.cuda.reclaim_inactive()  # what was written must travel
    found["resident then"] = torch.cuda.lms.is_resident(total)
    launch(total[:1000], x[:1000])
    found["right"] = bool((total[1000:] == x[1000:] + 1).all())
    found["right views"] = bool((total[:1000] == 2 * x[:1000] + 1).all())
    try:
        launch(total, x, nonsense=1)
    except Exception as error:
        found["refused"] = type(error).__name__
    found["pinned"] = stats()["pinned_bytes.all.current"]
    try:
        torch.ops.lms.end_launch(False)
    except RuntimeError as error:
        found["unmatched"] = str(error).splitlines()[0]
    address = total.data_ptr()  # outside of a launch it is held, as ever
    found["held"] = stats()["pinned_bytes.all.current"]
    found["address"] = address != 0
    print(json.dumps(found))


if __name__ == "__main__":
    main()
