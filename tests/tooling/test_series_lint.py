"""Each check of `lms lint` fails when what it checks is broken, and only then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import fake_torch
import pytest
import yaml
from fake_torch import CUDA_INIT, HEADER, FakeRelease
from lms_cli import checks, paths, releases
from lms_cli.series import export, lint
from lms_cli.wheel.wheelfile import Wheel

MESSAGE = fake_torch.PATCH_MESSAGE


@pytest.fixture
def recorded(fake: FakeRelease) -> FakeRelease:
    """A fake release whose record is up to date."""
    record(fake)
    return fake


def record(fake: FakeRelease) -> None:
    release = releases.load(fake.patches)[fake_torch.VERSION]
    with Wheel(fake.official) as official:
        export.update(release, official.text)


def failures(fake: FakeRelease) -> dict[str, str]:
    """Names of the checks that fail, with what they say."""
    release = releases.load(fake.patches)[fake_torch.VERSION]
    return {
        check.name: check.detail
        for check in lint.lint(release)
        if check.outcome is checks.Outcome.FAILED
    }


def test_a_good_series_passes_and_says_its_size(recorded: FakeRelease) -> None:
    result = recorded.lms("lint")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "FAIL" not in result.stdout
    assert "pass  size: 5 lines in 2 upstream files" in result.stdout


def in_patch(old: str, new: str) -> Callable[[FakeRelease], None]:
    def edit(fake: FakeRelease) -> None:
        patch = fake.series / "0001-hook.patch"
        text = patch.read_text()
        assert old in text
        patch.write_text(text.replace(old, new, 1))

    return edit


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(in_patch(MESSAGE, "\n---\n"), "begin with a title", id="no message"),
        pytest.param(
            in_patch("Hook the storage", "Hook " * 15), "begin with a title", id="a long title"
        ),
        pytest.param(
            in_patch("storage\n\n", "storage\n"), "begin with a title", id="no empty line"
        ),
        pytest.param(in_patch("Why a patch: ", ""), "'Why a patch: ...'", id="no reason"),
        pytest.param(in_patch("there is no hook.", ""), "'Why a patch: ...'", id="an empty reason"),
        pytest.param(in_patch("Upstream-status: ", ""), "'Upstream-status: ...'", id="no status"),
        pytest.param(
            in_patch("Hook the", f"From {'0' * 40} Mon Sep 17 00:00:00 2001\n\nHook the"),
            "begins with the head of a mail",
            id="a mail",
        ),
    ],
)
def test_a_message_that_does_not_say_why(
    recorded: FakeRelease, damage: Callable[[FakeRelease], None], message: str
) -> None:
    damage(recorded)
    record(recorded)
    found = failures(recorded)
    assert found.keys() == {"messages"}
    assert message in found["messages"]


def in_record(edit: Callable[[dict], object]) -> Callable[[FakeRelease], None]:
    def apply(fake: FakeRelease) -> None:
        path = fake.series / "export.yaml"
        content = yaml.safe_load(path.read_text())
        edit(content)
        path.write_text(yaml.safe_dump(content, sort_keys=False))

    return apply


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(in_patch("42", "43"), "0001-hook.patch was changed since", id="a hunk"),
        pytest.param(
            in_patch("there is no", "there was no"),
            "0001-hook.patch was changed since",
            id="a message",
        ),
        pytest.param(
            in_patch("index ", "index 0"), "no index line with complete hashes", id="an index line"
        ),
        pytest.param(
            in_record(lambda row: row["changed"][HEADER].update(after="0" * 40)),
            f"{HEADER} has other hashes",
            id="a hash",
        ),
        pytest.param(
            in_record(lambda row: row["changed"].pop(CUDA_INIT)),
            f"{CUDA_INIT} is in only one of them",
            id="a file less",
        ),
        pytest.param(
            in_record(lambda row: row["patches"].update({"more.patch": "0" * 64})),
            "more.patch is in only one of them",
            id="a patch more",
        ),
        pytest.param(
            in_record(lambda row: row["base"].update(commit="f" * 40)),
            f"its base is v9.9.9 at {'f' * 40}, releases.yaml says v9.9.9 at {fake_torch.COMMIT}",
            id="the base",
        ),
        pytest.param(in_record(lambda row: row.pop("base")), "is malformed", id="no base"),
        pytest.param(
            lambda fake: (fake.series / "export.yaml").write_text("{"), "is malformed", id="no YAML"
        ),
        pytest.param(
            lambda fake: (fake.series / "export.yaml").unlink(), "has no record", id="no record"
        ),
    ],
)
def test_a_series_edited_by_hand_gets_one_message(
    recorded: FakeRelease, damage: Callable[[FakeRelease], None], message: str
) -> None:
    damage(recorded)
    found = failures(recorded)
    assert found.keys() == {"export"}
    assert message in found["export"]
    assert "`lms export 9.9.9` works out the hashes" in found["export"]
    record(recorded)
    assert failures(recorded) == {}


def test_the_order_counts(recorded: FakeRelease, tmp_path: Path) -> None:
    more = fake_torch.git_patch(
        tmp_path / "more",
        {"torch/version.py": fake_torch.VERSION_PY},
        {"torch/version.py": f"{fake_torch.VERSION_PY}lms = True\n"},
    )
    (recorded.series / "more.patch").write_text(MESSAGE + more[more.index("diff --git ") :])
    order = recorded.series / "series"
    order.write_text("0001-hook.patch\nmore.patch\n")
    record(recorded)
    assert failures(recorded) == {}
    order.write_text("more.patch\n0001-hook.patch\n")
    assert "the patches are in another order" in failures(recorded)["export"]


@pytest.mark.parametrize(
    ("lines", "count", "passes"),
    [
        pytest.param(119, 1, True, id="just few enough lines"),
        pytest.param(120, 1, False, id="a line too many"),
        pytest.param(7, 7, True, id="just few enough files"),
        pytest.param(8, 8, False, id="a file too many"),
    ],
)
def test_a_series_must_be_small(
    fake: FakeRelease, tmp_path: Path, lines: int, count: int, passes: bool
) -> None:
    """Removed and added lines count alike."""
    before = {f"torch/{n}.py": "old\n" for n in range(count)}
    after = {path: "old\n" + "new\n" * (lines // count) for path in before}
    if count == 1:
        after = {path: "new\n" * (lines - 1) for path in before}  # one more is removed
    patch = fake_torch.git_patch(tmp_path / "repository", before, after)
    (fake.series / "0001-hook.patch").write_text(MESSAGE + patch[patch.index("diff --git ") :])
    found = failures(fake)
    assert ("size" not in found) == passes
    if not passes:
        assert f"{lines} lines in {count} upstream files" in found["size"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(
            lambda fake: (fake.series / "series").write_text(""),
            "does not list each patch of its folder exactly once: 0001-hook.patch",
            id="the order file",
        ),
        pytest.param(
            lambda fake: (fake.patches / "files" / "CMakeLists.txt").write_text(""),
            "CMakeLists.txt has no place in a wheel",
            id="a new file in no known place",
        ),
    ],
)
def test_a_series_that_cannot_be_read(
    recorded: FakeRelease, damage: Callable[[FakeRelease], object], message: str
) -> None:
    damage(recorded)
    found = failures(recorded)
    assert found.keys() == {"order"}
    assert message in found["order"]


def test_two_patches_of_one_file(recorded: FakeRelease) -> None:
    text = (recorded.series / "0001-hook.patch").read_text()
    (recorded.series / "again.patch").write_text(text)
    (recorded.series / "series").write_text("0001-hook.patch\nagain.patch\n")
    found = failures(recorded)
    assert found.keys() == {"export"}
    assert "is changed by two patches, 0001-hook.patch and again.patch" in found["export"]


def test_failures_of_all_releases_are_one_error(recorded: FakeRelease) -> None:
    in_patch("42", "43")(recorded)
    in_patch("Why a patch: ", "")(recorded)
    for arguments in ((), ("9.9.9",), ("v9.9.9",)):
        result = recorded.lms("lint", *arguments)
        assert result.returncode == 5
        assert result.stdout.count("FAIL") == 2
        assert result.stderr.splitlines() == ["lms: error: 2 check(s) of the series failed"]


def test_an_unknown_release(recorded: FakeRelease) -> None:
    result = recorded.lms("lint", "9.9.8")
    assert result.returncode == 2
    assert "Supported releases: 9.9.9." in result.stderr


@pytest.mark.parametrize("version", releases.load(paths.PATCHES))
def test_the_committed_series(version: str) -> None:
    found = list(lint.lint(releases.load(paths.PATCHES)[version]))
    assert [str(check) for check in found if check.outcome is not checks.Outcome.PASSED] == []
