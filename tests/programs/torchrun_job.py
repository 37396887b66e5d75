"""A training under torchrun on the first device, whatever its rank; see engine/test_schedulers.py.

torchrun torchrun_job.py FILE COUNT: so many processes of all jobs meet through the file, before
the training, and after it with all that it has made. Each prints a line of JSON: {"rank": ...,
"result": a dictionary, "paged_out": bytes}. PYTORCH_LMS turns LMS on.
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from distributed import TIMEOUT, adamw, data_parallel, train
from lms_demo.training import make_deterministic


def meet(store: dist.Store, place: str, count: int) -> None:
    if store.add(place, 1) == count:
        store.set(f"all at {place}", "")
    store.wait([f"all at {place}"], TIMEOUT)


def main() -> None:
    make_deterministic()
    torch.cuda.set_device(0)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    count = int(sys.argv[2])
    jobs = dist.FileStore(sys.argv[1], count)
    meet(jobs, "begin", count)
    model = data_parallel()
    optimizer = adamw(model)
    row = {"rank": dist.get_rank(), "result": train(model, optimizer)}
    meet(jobs, "end", count)
    row["paged_out"] = torch.cuda.lms.stats()["lms.page_out.bytes"]
    dist.destroy_process_group()
    sys.stdout.write(json.dumps(row) + "\n")  # at once: the processes share it
    sys.stdout.flush()


if __name__ == "__main__":
    main()
