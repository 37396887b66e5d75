"""A training under torchrun on the first device, whatever its rank; see engine/test_schedulers.py.

torchrun torchrun_job.py FOLDER COUNT: begins when so many processes of all jobs have left a file
in the folder. Each prints a line of JSON: {"rank": ..., "result": a dictionary, "paged_out":
bytes}. PYTORCH_LMS turns LMS on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from distributed import TIMEOUT, plain
from lms_demo.training import make_deterministic


def meet(folder: Path, count: int) -> None:
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < count:
        time.sleep(0.01)


def main() -> None:
    make_deterministic()
    torch.cuda.set_device(0)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    meet(Path(sys.argv[1]), int(sys.argv[2]))
    row = {"rank": dist.get_rank(), "result": plain()}
    row["paged_out"] = torch.cuda.lms.stats()["lms.page_out.bytes"]
    dist.destroy_process_group()
    sys.stdout.write(json.dumps(row) + "\n")  # at once: the processes share it
    sys.stdout.flush()


if __name__ == "__main__":
    main()
