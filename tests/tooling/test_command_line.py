"""The command line itself."""

from __future__ import annotations

import subprocess
import sys

import pytest
from lms_cli import cli, paths, releases

VERBS = [verb.__name__.rpartition(".")[2] for verb in cli.VERBS]
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
    for verb in VERBS:
        assert f"\n    {verb} " in result.stdout


@pytest.mark.parametrize("verb", VERBS)
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


@pytest.mark.parametrize(
    ("arguments", "tested"),
    [
        ([], [("2.11.0", [])]),
        (["-x"], [("2.11.0", ["-x"])]),
        (["--release", "2.6.0"], [("2.6.0", "programs")]),
        (["--release", "2.6.0", "tests/engine/test_api.py", "-x"], None),
    ],
)
def test_what_is_tested(
    arguments: list[str],
    tested: list[tuple[str, object]] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs: list[tuple[str, object]] = []

    def run(release: releases.Release, words: list[str]) -> int:
        programs = words == [*cli.test.WHOLE_PROGRAMS]
        runs.append((release.version, "programs" if programs else words))
        return 3 if release.version == "2.6.0" else 0

    monkeypatch.setattr(cli.toolbox, "ensure", lambda arguments: None)
    monkeypatch.setattr(cli.test, "run", run)
    expected = [("2.6.0", ["tests/engine/test_api.py", "-x"])] if tested is None else tested
    failed = any(version == "2.6.0" for version, _ in expected)
    assert cli.main(["test", *arguments]) == (3 if failed else 0)
    assert runs == expected


def test_all_releases_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []
    monkeypatch.setattr(cli.toolbox, "ensure", lambda arguments: None)
    monkeypatch.setattr(cli.test, "run", lambda release, words: runs.append(release.version) or 0)
    assert cli.main(["test", "--release", "all"]) == 0
    assert runs == list(releases.load(paths.PATCHES))


def test_no_verb() -> None:
    result = subprocess.run([sys.executable, str(paths.SCRIPT)], capture_output=True, text=True)
    assert result.returncode == 2
    assert "VERB" in result.stderr
