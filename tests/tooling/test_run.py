"""`lms run`: the program's arguments, variables and exit status, with a fake torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import fake_torch
import pytest
from fake_torch import FakeRelease
from lms_cli import simulate
from lms_cli.errors import UsageError

REPORT = """
import json, os, sys, torch
names = ("PYTORCH_LMS", "PYTORCH_LMS_LIMIT", "VIRTUAL_ENV")
print(json.dumps([torch.__version__, sys.argv[1:], {name: os.environ.get(name) for name in names}]))
"""


def environment_with(wheel: Path, folder: Path) -> Path:
    dependency = fake_torch.write_pure_wheel(folder.parent, "fake_dependency", "1.5")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, wheel, dependency], check=True)
    return folder


@pytest.fixture(scope="module")
def environment(pristine: FakeRelease, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environment") / "venv"
    return environment_with(pristine.out / fake_torch.LMS_NAME, folder)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(REPORT)
    return path


def run(
    release: FakeRelease, environment: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    options = ("--device", "cuda", "--environment", str(environment))
    return release.lms("run", *options, *arguments, PYTORCH_LMS="chaos")


@pytest.mark.parametrize(
    ("options", "lms", "limit"),
    [
        ((), "1", None),
        (("--lms", "on"), "1", None),
        (("--lms", "off"), None, None),
        (("--lms", "chaos", "--limit", "1.5G"), "chaos", str(3 << 29)),
    ],
)
def test_variables_and_arguments(
    pristine: FakeRelease,
    environment: Path,
    program: Path,
    options: tuple[str, ...],
    lms: str | None,
    limit: str | None,
) -> None:
    result = run(pristine, environment, *options, str(program), "--lms", "mine", "-x")
    assert result.returncode == 0, result.stderr
    version, arguments, variables = json.loads(result.stdout)
    assert version == "9.9.9+cu130.lms1"
    assert arguments == ["--lms", "mine", "-x"]
    assert variables == {
        "PYTORCH_LMS": lms,
        "PYTORCH_LMS_LIMIT": limit,
        "VIRTUAL_ENV": str(environment),
    }


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise SystemExit(37)", 37),
        ("raise ValueError('mine')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -11),
    ],
)
def test_the_status_is_the_programs(
    pristine: FakeRelease, environment: Path, tmp_path: Path, code: str, status: int
) -> None:
    program = tmp_path / "ends.py"
    program.write_text(code)
    assert run(pristine, environment, str(program)).returncode == status


def test_a_module(pristine: FakeRelease, environment: Path) -> None:
    for words in (("--", "-m", "platform"), ("-m", "platform"), ("-m", "platform", "--terse")):
        result = run(pristine, environment, *words)
        assert (result.returncode, result.stderr) == (0, "")
        assert "Linux" in result.stdout


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--capacity", "0", "a device without memory"),
        ("--devices", "0", "there can be 1 to 16"),
        ("--devices", "-1", "there can be 1 to 16"),
        ("--devices", "1000", "there can be 1 to 16"),
    ],
)
def test_devices_that_cannot_be(
    pristine: FakeRelease, program: Path, option: str, value: str, message: str
) -> None:
    result = pristine.lms("run", "--device", "sim", f"{option}={value}", str(program))
    assert (result.returncode, message in result.stderr) == (2, True), result.stderr
    assert "Traceback" not in result.stderr


def test_an_official_torch_is_refused(pristine: FakeRelease, tmp_path: Path, program: Path) -> None:
    folder = environment_with(pristine.official, tmp_path / "official")
    result = run(pristine, folder, str(program))
    assert result.returncode == 9
    assert f"torch 9.9.9 in {folder} is not an LMS wheel" in result.stderr
    assert "pip install --force-reinstall --no-deps" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_small_wheel_beside_an_official_torch(
    pristine: FakeRelease, tmp_path: Path, program: Path
) -> None:
    folder = environment_with(pristine.official, tmp_path / "small")
    (site_packages,) = folder.glob("lib/python3*/site-packages")
    metadata = site_packages / "torch_lms-0.5.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_lms\nVersion: 0.5\n")
    (metadata / "LMS.json").write_text("{}")
    result = run(pristine, folder, str(program))
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)[0] == "9.9.9+cu130"


def test_no_torch(pristine: FakeRelease, tmp_path: Path, program: Path) -> None:
    folder = tmp_path / "empty"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    result = run(pristine, folder, str(program))
    assert (result.returncode, "there is no torch" in result.stderr) == (9, True)


def test_no_environment(pristine: FakeRelease, tmp_path: Path, program: Path) -> None:
    result = run(pristine, tmp_path / "nowhere", str(program))
    assert result.returncode == 9
    assert "is not a Python environment that works" in result.stderr


def test_no_program(pristine: FakeRelease, environment: Path) -> None:
    result = run(pristine, environment, "nowhere.py")
    assert (result.returncode, "there is no program nowhere.py" in result.stderr) == (2, True)


def test_options_of_the_simulated_device_are_refused_on_a_gpu(
    pristine: FakeRelease, environment: Path, program: Path
) -> None:
    result = run(pristine, environment, "--capacity", "1G", str(program))
    assert result.returncode == 2
    assert "--capacity: only for the simulated device" in result.stderr


def test_with_packages(fake: FakeRelease, environment: Path, tmp_path: Path) -> None:
    """They go on top of the environment, which stays as it was; torch stays ours."""
    fake_torch.write_pure_wheel(fake.index, "extra", "1.0", "torch==9.9.9")
    program = tmp_path / "uses.py"
    program.write_text("import extra, torch; print(torch.__version__, extra.__file__)")
    before = sorted(environment.rglob("*"))
    options = ("--device", "cuda", "--environment", str(environment), "--with", "extra")
    result = fake.lms("run", *options, str(program), PYTHONDONTWRITEBYTECODE="1")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("9.9.9+cu130.lms1 ")
    assert str(fake.home) in result.stdout
    assert sorted(environment.rglob("*")) == before
    unknown = fake.lms("run", *options, "--with", "no-such-thing", str(program))
    assert unknown.returncode == 3
    assert "could not install" in unknown.stderr


@pytest.mark.parametrize(
    ("text", "size"),
    [("1000", 1000), ("64M", 64 << 20), ("64MiB", 64 << 20), ("1.5g", 3 << 29), ("2 K", 2048)],
)
def test_sizes(text: str, size: int) -> None:
    assert simulate.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "M", "-1", "64X", "1,5G"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        simulate.parse_size(text)


# --- lms trace record ---

HEADER = '{"lms_trace": 1, "name": "n", "card": "c"}\n'
WRITES = """
import os, sys
with open(os.environ["PYTORCH_LMS_TRACE"], "w") as stream:
    stream.write(sys.argv[1])
raise SystemExit(int(sys.argv[2]))
"""


@pytest.mark.parametrize(
    ("content", "ends", "status", "message"),
    [
        (HEADER + '{"step": 1}\n', "0", 0, "0 operators in"),
        (HEADER, "3", 3, "0 operators in"),
        (HEADER + '{"step": ', "0", 11, "line 2: it is cut off"),
        ("", "0", 11, "line 1: the file is empty"),
    ],
)
def test_recording(
    pristine: FakeRelease,
    environment: Path,
    tmp_path: Path,
    content: str,
    ends: str,
    status: int,
    message: str,
) -> None:
    program = tmp_path / "writes.py"
    program.write_text(WRITES)
    out = tmp_path / "out.jsonl"
    out.write_text("the old one")
    options = ("--device", "cuda", "--environment", str(environment))
    result = pristine.lms("trace", "record", str(out), *options, str(program), content, ends)
    assert (result.returncode, message in result.stderr) == (status, True), result.stderr
    assert out.read_text() == ("the old one" if status == 11 else content)
    assert sorted(tmp_path.glob(".*")) == []


def test_recording_nothing(
    pristine: FakeRelease, environment: Path, program: Path, tmp_path: Path
) -> None:
    options = ("--device", "cuda", "--environment", str(environment))
    result = pristine.lms("trace", "record", str(tmp_path / "out"), *options, str(program))
    assert result.returncode == 11
    assert "the program ended with status 0 and left no trace" in result.stderr
    assert not (tmp_path / "out").exists()
