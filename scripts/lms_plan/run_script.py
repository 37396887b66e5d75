"""Run a script as `python` does until it has trained for a few steps; write what they took.

    python run_script.py RIVAL REPORT SCRIPT [ARGS]      # or -m MODULE [ARGS]

Runs in the simulated device's timed mode, whose variables the caller has set. RIVAL is a name of
the benchmark's: what a user does where memory is too small. REPORT becomes a JSON object.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from lms_bench import catalogue
from lms_bench.measurement import memory
from lms_bench.run_cell import first_line

OURS = (__file__, runpy.__file__, "<frozen runpy>")


def main() -> None:
    """Command line."""
    rival, report, *program = sys.argv[1:]
    found = outcome(catalogue.named("rival", catalogue.RIVALS, rival), Path(report), program)
    if found is not None:
        write(Path(report), found)


def outcome(rival: catalogue.Rival, report: Path, program: list[str]) -> dict[str, Any] | None:
    """How the script ended; None if it was ended, after enough steps, and these are written."""
    os.environ.update(rival.variables)  # read when torch is imported
    import torch

    from lms_plan import harmless
    from lms_plan.watching import Enough, Watcher

    harmless.prepare()
    rival.prepare(None)
    with tempfile.TemporaryDirectory() as folder:
        watcher = Watcher(
            rival.counted(catalogue.ITERATIONS),
            Path(folder) / "timeline.jsonl",
            with_contents=rival.unlimited,
            finish=lambda figures: write(report, {"status": "ok", **figures}),
        )
        watcher.attach()
        try:
            run(program)
        except Enough:
            return None
        except torch.cuda.OutOfMemoryError as error:
            print_traceback(error)
            return {"status": "oom", "reason": str(error).splitlines()[-1]}  # LMS's own words
        except SystemExit as end:
            if end.code not in (None, 0):
                return {"status": "failed", "reason": f"it ended with status {end.code}"}
        except BaseException as error:
            print_traceback(error)
            return {"status": "failed", "reason": f"{type(error).__name__}: {first_line(error)}"}
        return {"status": "short", "reason": f"{watcher.steps} steps", **memory()}


def run(program: list[str]) -> None:
    """As `python PROGRAM` does."""
    if program[0] == "-m":
        sys.argv, sys.path[0] = program[1:], str(Path.cwd())
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = program, str(Path(program[0]).resolve().parent)
        runpy.run_path(program[0], run_name="__main__")


def print_traceback(error: BaseException) -> None:
    """As Python prints it where nothing but the script runs."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename in OURS:
        trace = trace.tb_next
    traceback.print_exception(error.with_traceback(trace))


def write(report: Path, found: dict[str, Any]) -> None:
    """Nothing or all of it."""
    unfinished = report.with_suffix(".part")
    unfinished.write_text(json.dumps(found), encoding="utf-8")
    unfinished.replace(report)


if __name__ == "__main__":
    main()
