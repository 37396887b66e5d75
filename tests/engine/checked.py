"""Runs a program of checks/ once and tells how each of its checks ended.

Importing torch takes seconds and a check milliseconds, hence many checks share one process. A
process that dies loses its results from the check that killed it on; these are run in another one.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from support.child import SHOWN_LINES, Finished
from support.device import Device

CHECKS = Path(__file__).with_name("checks")

Results = dict[str, tuple[str, str]]  # by check: "passed", "skipped", "failed" or "died", detail


def names(program: str) -> list[str]:
    """The tests of a program, in order, without running it."""
    body = ast.parse((CHECKS / f"{program}.py").read_text()).body
    return [
        f"{case.name}.{test.name}"
        for case in body
        if isinstance(case, ast.ClassDef)
        for test in case.body
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test_")
    ]


def run(device: Device, program: str, *arguments: Any, **settings: Any) -> Results:
    """Runs all checks of a program on the device.

    Args:
        device: where.
        program: its name in checks/.
        arguments: for the program, before the names of checks.
        settings: of Device.environment.
    """
    results: Results = {}
    remaining = names(program)
    while remaining:
        done = device.run(CHECKS / f"{program}.py", *arguments, *remaining, **settings)
        new = read(done)
        if not new:  # it did not get as far as the first check
            return dict.fromkeys(remaining, ("died", done.stderr)) | results
        results |= new
        remaining = [name for name in remaining if name not in results]
    if done.status not in (0, *range(1, len(results) + 1)):
        results["exit"] = ("died", f"exit status {done.status}\n{done.stderr}")
    return results


def read(done: Finished) -> Results:
    results: Results = {}
    for line in done.stdout.splitlines():
        if line.startswith("TEST "):
            check, state, detail = json.loads(line.removeprefix("TEST "))
            results[check] = (state, detail)
    tail = "\n".join(done.stderr.splitlines()[-SHOWN_LINES:])
    return {
        check: ("died", f"exit status {done.status}\n{tail}")
        if state == "started"
        else (state, detail)
        for check, (state, detail) in results.items()
    }


def expect_passed(results: Results, subtests: pytest.Subtests) -> None:
    """Reports each check; one that failed shows its own traceback."""
    assert results
    for check, (state, detail) in results.items():
        with subtests.test(check):
            if state == "skipped":
                pytest.skip(detail)
            assert state == "passed", f"{check} {state}\n{detail}"
