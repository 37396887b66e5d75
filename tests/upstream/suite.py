"""Running a file of upstream's tests in one of three modes, and comparing."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from support import source_tree
from support.device import Device

HERE = Path(__file__).parent
# Bytes that LMS may use in the mode "small". A test that runs out of memory gets the next: some
# operators need 48 MiB at once, some tests make tensors of 400 MiB.
LIMITS = (64 << 20, 256 << 20, 640 << 20)
CAPACITY = "1G"  # what needs more is skipped, or fails without LMS
SECONDS = 900  # for one test: Triton's interpreter takes 8 minutes for some
SHORT = "CUDA out of memory"  # in the message of a test that is given more
NO_RUN = "it did not run, or died"
BROKEN = (2, 3, 4)  # pytest's exit status where tests cannot be collected or pytest fails
MODES: dict[str, dict[str, str]] = {
    "off": {},
    "small": {"PYTORCH_LMS": "1"},
    "chaos": {"PYTORCH_LMS": "chaos"},
}


@dataclass
class Outcomes:
    """How the tests of a file ended in one mode."""

    tests: dict[str, str] = field(default_factory=dict)  # passed, skipped, failed or died, by name
    messages: dict[str, str] = field(default_factory=dict)  # of those that failed or died
    reclaimed: int = 0  # storages that LMS paged out
    status: int | None = None  # of the process that ran the last ones

    @property
    def passed(self) -> list[str]:
        """Names of those that passed."""
        return [name for name, outcome in self.tests.items() if outcome == "passed"]


def files() -> list[str]:
    """Which of upstream's files and folders are run."""
    listed: list[str] = yaml.safe_load((HERE / "files.yaml").read_text())
    return listed


def excused(file: str) -> dict[str, str]:
    """Why a test that passes without LMS need not pass with it, by name."""
    listed: dict[str, str] = yaml.safe_load((HERE / "excused.yaml").read_text()) or {}
    return {name: reason for name, reason in listed.items() if name.startswith(file)}


def lost(device: Device, file: str, mode: str, folder: Path, expected: list[str]) -> dict[str, str]:
    """Messages of the expected tests that do not pass in a mode, by name; see `run`."""
    failed = dict.fromkeys(expected, "")
    for limit in LIMITS if mode == "small" else (0,):
        short = [name for name, message in failed.items() if not message or SHORT in message]
        if short:
            found = run(device, file, mode, folder, short, limit)
            for name in found.passed:
                failed.pop(name, None)
            failed |= {name: found.messages.get(name) or NO_RUN for name in short if name in failed}
    return failed


def run(
    device: Device, file: str, mode: str, folder: Path, only: list[str] | str, limit: int = 0
) -> Outcomes:
    """Runs tests of a file or folder that use CUDA.

    Args:
        device: where.
        file: one of `files`.
        mode: one of `MODES`.
        folder: for files of this function's own.
        only: the names of the tests, or which part of all: "K/N".
        limit: bytes that LMS may use, 0: all.
    """
    record, wanted = folder / f"{mode}-{limit >> 20}.jsonl", folder / f"{mode}.txt"
    record.write_text("")
    environment = {**MODES[mode], "UPSTREAM_RECORD": str(record), "PYTORCH_LMS_LIMIT": str(limit)}
    if isinstance(only, str):
        environment["UPSTREAM_PART"] = only
    else:
        wanted.write_text("\n".join(only))
        environment["UPSTREAM_ONLY"] = str(wanted)
    outcomes = Outcomes()
    while outcomes.status is None:
        ended = len(outcomes.tests)
        done = device.run(*command(file), capacity=CAPACITY, env=environment, timeout=None)
        outcomes = read(record)
        if outcomes.status in BROKEN or (outcomes.status is None and len(outcomes.tests) == ended):
            raise AssertionError(f"{file} does not run:\n{done.stdout}\n{done.stderr}")
    outcomes.tests[f"{file}::exit"] = "passed" if done.status == outcomes.status else "died"
    return outcomes


def command(file: str) -> list[str]:
    """Pytest without upstream's configuration of it, which is for an older one."""
    tests = source_tree.upstream_tests()
    options = ["-q", "--noconftest", f"--config-file={os.devnull}", f"--rootdir={tests}"]
    options += ["-p", "no:cacheprovider", "-p", "upstream.recorder", f"--timeout={SECONDS}"]
    return ["-W", "ignore", "-m", "pytest", *options, str(tests / file)]


def read(record: Path) -> Outcomes:
    """What `recorder` wrote."""
    outcomes = Outcomes()
    for row in map(json.loads, record.read_text().splitlines()):
        if "test" in row:
            outcomes.tests[row["test"]] = row["outcome"]
            outcomes.messages[row["test"]] = row.get("message", "")
        else:
            outcomes.reclaimed, outcomes.status = row["reclaimed"], row["status"]
    return outcomes
