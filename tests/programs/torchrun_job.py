"""A training under torchrun on the first device, whatever its rank; see engine/test_schedulers.py.

torchrun torchrun_job.py FOLDER COUNT: so many processes of all jobs meet in the folder, before
the training, and after it with all that it has made. Each prints a line of JSON: {"rank": ...,
"result": a dictionary, "paged_out": bytes}. PYTORCH_LMS turns LMS on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from distributed import TIMEOUT, adamw, data_parallel, train
from lms_demo.training import make_deterministic


def meet(folder: Path, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < count:
        time.sleep(0.01)


def main() -> None:
    make_deterministic()
    torch.cuda.set_device(0)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    meet(folder / "begin", count)
    model = data_parallel()
    optimizer = adamw(model)
    row = {"rank": dist.get_rank(), "result": train(model, optimizer)}
    meet(folder / "end", count)
    row["paged_out"] = torch.cuda.lms.stats()["lms.page_out.bytes"]
    dist.destroy_process_group()
    sys.stdout.write(json.dumps(row) + "\n")  # at once: the processes share it
    sys.stdout.flush()


if __name__ == "__main__":
    main()
