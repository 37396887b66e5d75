"""The command line itself."""

from __future__ import annotations

import subprocess
import sys

import pytest
from lms_cli import cli, paths

THIRD_PARTY = ("yaml", "rich", "packaging", "unidiff", "auditwheel", "elftools")


def test_help_needs_the_standard_library_only() -> None:
    code = f"""
import sys
sys.path.insert(0, {str(paths.ROOT / "scripts")!r})
from lms_cli import cli
try:
    cli.main(["--help"])
except SystemExit as end:
    assert end.code == 0
assert not set({THIRD_PARTY!r}) & set(sys.modules), "imported too early"
"""
    command = [sys.executable, "-I", "-S", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for verb in ("demo", "build", "verify", "run", "bench", "trace", "test"):
        assert f"\n    {verb} " in result.stdout


@pytest.mark.parametrize("verb", ["demo", "build", "verify", "run", "bench", "trace", "test"])
def test_each_verb_has_help(verb: str) -> None:
    command = [sys.executable, str(paths.SCRIPT), verb, "--help"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments", [[], ["-n", "2", "tests/tooling"], ["tests", "-k", "a b"], ["--", "-x"]]
)
def test_everything_after_test_is_pytests(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(cli.toolbox, "ensure", lambda arguments: None)
    monkeypatch.setattr(cli.test, "execute", lambda args: seen.append(args.arguments) or 0)
    assert cli.main(["test", *arguments]) == 0
    assert [word for word in seen[0] if word != "--"] == [
        word for word in arguments if word != "--"
    ]


def test_no_verb() -> None:
    result = subprocess.run([sys.executable, str(paths.SCRIPT)], capture_output=True, text=True)
    assert result.returncode == 2
    assert "VERB" in result.stderr
