"""Whatever is wrong: one clear message, the right exit status, and nothing half-written."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_torch
import pytest
from fake_torch import FakeRelease


def leftovers(fake: FakeRelease) -> list[str]:
    """Wheels, and temporary files of any kind, in the places that are written to."""
    return [
        str(path.relative_to(fake.root))
        for folder in (fake.out, fake.downloads, fake.home)
        for path in folder.rglob("*")
        if path.suffix in (".whl", ".part") or path.name.startswith(".lms-unfinished-")
    ]


def assert_refused(result: Any, status: int, *messages: str) -> None:
    assert result.returncode == status, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.count("lms: error:") == 1
    assert result.stdout == ""
    for message in messages:
        assert message in result.stderr


def test_unknown_release(fake: FakeRelease) -> None:
    result = fake.lms("build", "9.9.8")
    assert_refused(result, 2, "no LMS series for PyTorch 9.9.8", "Supported releases: 9.9.9.")


def test_unknown_python(fake: FakeRelease) -> None:
    result = fake.lms("build", "9.9.9", "--python", "3.7")
    assert_refused(result, 2, "no official wheel for Python 3.7", "There are wheels for Python 3.")


def test_nothing_is_built_if_one_of_several_pythons_is_unknown(fake: FakeRelease) -> None:
    running = fake_torch.PYTHON.replace("cp3", "3.")
    result = fake.lms("build", "9.9.9", "--python", running, "--python", "3.7")
    assert_refused(result, 2)
    assert leftovers(fake) == []


def test_wrong_sha256(fake: FakeRelease) -> None:
    fake.pin(sha256="0" * 64)
    assert_refused(fake.build(), 4, "could not download torch==9.9.9", "Nothing was kept")
    assert leftovers(fake) == []


def test_another_commit(fake: FakeRelease) -> None:
    fake.pin(commit="f" * 40)
    assert_refused(fake.build(), 7, f"git_version in torch/version.py is {fake_torch.COMMIT}")
    assert list(fake.out.glob("*")) == []


def test_malformed_releases(fake: FakeRelease) -> None:
    (fake.patches / "releases.yaml").write_text("releases:\n  9.9.9: {tag: v9.9.9}\n")
    assert_refused(fake.build(), 1, "releases.yaml is malformed")


def test_no_releases(fake: FakeRelease) -> None:
    (fake.patches / "releases.yaml").unlink()
    assert_refused(fake.build(), 1, "cannot read the list of releases")


def test_release_without_series(fake: FakeRelease) -> None:
    (fake.series / "series").unlink()
    assert_refused(fake.build(), 2, "PyTorch 9.9.9 has no series")


def test_missing_compiler(fake: FakeRelease) -> None:
    result = fake.build(CXX="no-such-compiler")
    assert_refused(result, 6, "no C++ compiler: no-such-compiler not found", "apt install g++")
    assert list(fake.out.glob("*.whl")) == []


def test_source_that_does_not_compile(fake: FakeRelease) -> None:
    (fake.patches / "files" / fake_torch.NEW_SOURCE).write_text("int unused(int parameter) {}\n")
    result = fake.build()
    assert_refused(result, 6, "does not compile", "unused parameter", "compile.log")
    assert list(fake.out.glob("*.whl")) == []


def test_hunk_that_does_not_fit(fake: FakeRelease) -> None:
    patch = fake.series / "0001-hook.patch"
    patch.write_text(patch.read_text().replace(" int storage_4();", " int storage_four();"))
    result = fake.build()
    assert_refused(result, 5, "expected 'int storage_four();'", "found    'int storage_4();'")
    assert list(fake.out.glob("*.whl")) == []


class TruncatingHandler(http.server.SimpleHTTPRequestHandler):
    """A package index that cuts each wheel short."""

    def copyfile(self, source: Any, outputfile: Any) -> None:
        content = source.read()
        is_wheel = self.path.endswith(".whl")
        outputfile.write(content[: len(content) // 2] if is_wheel else content)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def truncating_index(fake: FakeRelease) -> Iterator[str]:
    folder = fake.root / "simple" / "torch"
    folder.mkdir(parents=True)
    fake.official.rename(folder / fake.official.name)
    name = fake_torch.WHEEL_NAME
    (folder / "index.html").write_text(f'<!DOCTYPE html><a href="{name}">{name}</a>')
    handler = functools.partial(TruncatingHandler, directory=str(fake.root / "simple"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_truncated_download(fake: FakeRelease, truncating_index: str) -> None:
    fake.variables = {"PIP_INDEX_URL": truncating_index, "PIP_RESUME_RETRIES": "0"}
    result = fake.build(PIP_NO_INDEX="0")
    assert_refused(result, 4, "could not download torch==9.9.9", "The download was cut short")
    assert leftovers(fake) == []


def test_no_network(fake: FakeRelease) -> None:
    fake.official.unlink()
    result = fake.build(PIP_NO_INDEX="0", PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert_refused(result, 3, "could not download torch==9.9.9", "pip config list")
    assert leftovers(fake) == []


def test_no_space_is_seen_before_anything_is_written(fake: FakeRelease) -> None:
    code = """
import shutil, sys
from lms_cli import cli
shutil.disk_usage = lambda folder: type("Usage", (), {"free": 10_000})()
sys.exit(cli.main(["build", "9.9.9"]))
"""
    result = fake.python(code)
    assert_refused(result, 10, "not enough space in", "XDG_CACHE_HOME")
    assert leftovers(fake) == []


def test_disk_that_fills_up_while_writing(fake: FakeRelease) -> None:
    code = f"""
import errno, sys
from lms_cli import cli
from lms_cli.wheel import wheelfile
def full(*arguments):
    raise OSError(errno.ENOSPC, "No space left on device")
wheelfile._add = full
sys.exit(cli.main(["build", "9.9.9", "--out", {str(fake.out)!r}]))
"""
    result = fake.python(code)
    assert_refused(result, 10, "the disk is full", "Free some space")
    assert [path for path in leftovers(fake) if path.startswith("out")] == []


KILL = """
import os, signal, sys
from pathlib import Path
from lms_cli import cli, download
from lms_cli.wheel import builds, compile, wheelfile
def kill(*arguments, **named):
    os.kill(os.getpid(), signal.SIGKILL)
{arm}
sys.exit(cli.main(["build", "9.9.9", "--out", {out!r}]))
"""


@pytest.mark.parametrize(
    "arm",
    [
        pytest.param("wheelfile._add = kill", id="in the middle of writing the wheel"),
        pytest.param("builds.report = kill", id="before verifying"),
        pytest.param("download.files.sha256_of = kill", id="after downloading"),
        pytest.param("compile.run_cmake = kill", id="while compiling"),
        pytest.param(
            "original = Path.replace\n"
            "Path.replace = lambda self, to: kill() if 'out' in str(to) else original(self, to)",
            id="before publishing",
        ),
    ],
)
def test_killed_in_the_middle(fake: FakeRelease, pristine: FakeRelease, arm: str) -> None:
    result = fake.python(KILL.format(arm=arm, out=str(fake.out)))
    assert result.returncode == -9, result.stderr
    assert list(fake.out.glob("*.whl")) == []
    assert fake.built().read_bytes() == (pristine.out / fake_torch.LMS_NAME).read_bytes()
    unfinished = [path for path in leftovers(fake) if "unfinished" in path]
    assert unfinished == []  # the next run cleaned up


def test_killed_while_the_tools_are_installed(fake: FakeRelease, tmp_path: Path) -> None:
    """An environment without its marker is made again."""
    lock = tmp_path / "empty.lock"
    lock.write_text("")
    code = f"""
from pathlib import Path
from lms_cli.environments import toolbox
lock = Path({str(lock)!r})
python = toolbox.folder_of(lock) / "bin" / "python"
python.parent.mkdir(parents=True)
python.write_text("half-written")
assert toolbox.make(lock, "nothing") == python
assert (toolbox.folder_of(lock) / ".complete").exists()
assert not python.read_bytes().startswith(b"half-written")
"""
    result = fake.python(code)
    assert result.returncode == 0, result.stderr


def test_old_python() -> None:
    """The version check works on what an older Python can parse up to it."""
    from lms_cli import paths

    head = paths.SCRIPT.read_text().partition("from pathlib")[0]
    namespace: dict[str, Any] = {"__name__": "lms"}
    code = head.replace("import sys", "").replace('"""', "#", 1)
    fake_sys = type("Sys", (), {})()
    fake_sys.version_info = (3, 9, 1)
    fake_sys.executable = "/usr/bin/python3.9"

    def leave(message: str) -> None:
        raise SystemExit(message)

    fake_sys.exit = leave
    namespace["sys"] = fake_sys
    with pytest.raises(SystemExit, match=r"Python 3\.9 .* is too old"):
        exec(compile(code, "lms", "exec"), namespace)


def test_a_place_that_cannot_be_written(fake: FakeRelease) -> None:
    in_the_way = fake.root / "file"
    in_the_way.write_text("")
    result = fake.lms("build", "9.9.9", "--out", str(in_the_way / "wheels"))
    assert_refused(result, 13, str(in_the_way), "--out", "LMS_HOME")
    for name in ("LMS_HOME", "XDG_CACHE_HOME"):
        result = fake.build(**{name: str(in_the_way / "folder")})
        assert_refused(result, 13, str(in_the_way), name)


def test_a_damaged_download_is_mentioned(fake: FakeRelease) -> None:
    assert fake.build().returncode == 0
    (cached,) = fake.downloads.rglob(fake_torch.WHEEL_NAME)
    cached.write_bytes(b"damaged")
    for wheel in fake.out.glob("*.whl"):
        wheel.unlink()
    result = fake.build()
    assert result.returncode == 0, result.stderr
    assert f"{cached} is damaged" in result.stderr
