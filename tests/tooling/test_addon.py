"""The small wheel, made for a tiny fake release and installed beside its official torch."""

from __future__ import annotations

import email.parser
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import fake_torch
import pytest
from fake_torch import COMMIT, CUDA_INIT, HEADER, HEADER_TEXT, NEW_SOURCE, VERSION, FakeRelease
from lms_cli import paths
from lms_cli.addon import changed_functions, small_wheel
from lms_cli.environments import virtual
from lms_cli.errors import SeriesError

DIST_INFO = f"torch_lms-{small_wheel.version()}.dist-info"
LIBRARY = f"torch_lms/releases/{VERSION}/libtorch_lms.so"
MEMORY = "torch/cuda/memory.py"
# Upstream's torch in a few lines: it runs the entry points, and tells of memory.
OFFICIAL = {
    "torch/__init__.py": """import ctypes
from importlib.metadata import entry_points
from torch import cuda, version
from torch.version import __version__


class ops:
    load_library = ctypes.CDLL
    lms = "the engine"


for extension in entry_points(group="torch.backends"):
    extension.load()()
""",
    CUDA_INIT: '__all__ = ["summary"]\nfrom torch.cuda.memory import *\n',
    MEMORY: """UNIT = "B"


def summary(size=1):
    return f"{size} {UNIT}"


def untouched():
    return 1
""",
}
SERIES = {
    HEADER: HEADER_TEXT.replace("_5();\n", "_5();\ninline int lms_hook() { return 42; }\n"),
    CUDA_INIT: f"{OFFICIAL[CUDA_INIT]}from . import lms\n",
    MEMORY: OFFICIAL[MEMORY].replace("{UNIT}", "{UNIT} and LMS"),
}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> FakeRelease:
    """A release whose series adds the real Python files; tests must not change it."""
    root = tmp_path_factory.mktemp("addon")
    fake = fake_torch.make(root)
    members = fake_torch.official_members(root)
    members |= {name: text.encode() for name, text in OFFICIAL.items()}
    fake_torch.write_wheel(fake.official, members)
    fake.pin()
    patch = fake_torch.git_patch(root / "patched", {**OFFICIAL, HEADER: HEADER_TEXT}, SERIES)
    (fake.series / "0001-hook.patch").write_text(patch)
    python = paths.ROOT / "patches" / "files" / "torch"
    shutil.copytree(python, fake.patches / "files" / "torch", dirs_exist_ok=True)
    cached = fake.downloads / hashlib.sha256(fake.official.read_bytes()).hexdigest()
    cached.mkdir(parents=True)
    shutil.copy(fake.official, cached)
    return fake


@pytest.fixture
def fresh(release: FakeRelease, tmp_path: Path) -> FakeRelease:
    """The same release for one test to change, with nothing built."""
    fake = FakeRelease(tmp_path)
    shutil.copytree(release.patches, fake.patches)
    shutil.copytree(release.downloads, fake.downloads)
    fake.home.mkdir()
    for tools in release.home.glob("tools-*"):
        (fake.home / tools.name).symlink_to(tools.resolve())
    return fake


def build(fake: FakeRelease, **variables: str) -> Path:
    result = fake.lms("build", "--addon", "--out", str(fake.out), **variables)
    assert result.returncode == 0, result.stderr
    return Path(result.stdout.removesuffix("\n"))


@pytest.fixture(scope="module")
def wheel(release: FakeRelease) -> Path:
    """Tests must not change it."""
    return build(release)


@pytest.fixture
def site(release: FakeRelease, wheel: Path, tmp_path: Path) -> Path:
    """A folder of packages: the official torch, and the small wheel."""
    for path in (release.official, wheel):
        with zipfile.ZipFile(path) as archive:
            archive.extractall(tmp_path / "site")
    return tmp_path / "site"


def run(site: Path, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code that sees the packages of a folder only."""
    command = [sys.executable, "-S", "-W", "error", "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(site), **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_contents(release: FakeRelease, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    python = release_python(release)
    metadata = ("LMS.json", "METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    assert set(members) == {
        "torch_lms/__init__.py",
        "torch_lms/_engine.py",
        "torch_lms/releases/releases.json",
        f"torch_lms/releases/{VERSION}/memory.py",
        LIBRARY,
        *python,
        *(f"{DIST_INFO}/{name}" for name in metadata),
    }
    for name, path in python.items():
        assert members[name] == path.read_bytes()
    (compiled,) = release.home.glob("libraries/*/libtorch_lms.so")
    assert members[LIBRARY] == compiled.read_bytes()
    changed = members[f"torch_lms/releases/{VERSION}/memory.py"].decode()
    assert changed == 'def summary(size=1):\n    return f"{size} {UNIT} and LMS"\n'
    assert json.loads(members["torch_lms/releases/releases.json"]) == {
        VERSION: {"commit": COMMIT, "cuda": "13.0"}
    }
    made_from = json.loads(members[f"{DIST_INFO}/LMS.json"])
    assert made_from["version"] == small_wheel.version()
    assert re.fullmatch(r"[0-9a-f]{64}", made_from["releases"][VERSION]["series_sha256"])


def release_python(release: FakeRelease) -> dict[str, Path]:
    """The series' Python files, by their names in the wheel."""
    files = release.patches / "files"
    found = (files / "torch" / "cuda").rglob("*.py")
    return {f"torch_lms/{path.relative_to(files)}": path for path in found}


def test_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        texts = [archive.read(f"{DIST_INFO}/{name}").decode() for name in ("METADATA", "WHEEL")]
        assert (
            archive.read(f"{DIST_INFO}/licenses/LICENSE") == (paths.ROOT / "LICENSE").read_bytes()
        )
    metadata, tags = map(email.parser.HeaderParser().parsestr, texts)
    assert (metadata["Name"], metadata["Version"]) == ("torch-lms", small_wheel.version())
    assert metadata.get_all("Requires-Dist") == ["torch"]  # any, so that none is replaced
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert tags["Root-Is-Purelib"] == "false"
    assert wheel.name == f"torch_lms-{small_wheel.version()}-{tags['Tag']}.whl"
    assert re.fullmatch(r"py3-none-(many)?linux(_2_\d+)?_x86_64", tags["Tag"])


def test_two_builds_are_byte_identical(wheel: Path, fresh: FakeRelease) -> None:
    again = build(fresh)  # in another folder, compiled afresh
    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()


def test_the_tag_is_what_the_least_portable_library_deserves(
    wheel: Path, fresh: FakeRelease
) -> None:
    """A symbol of glibc 2.28 keeps it off older systems."""
    source = fresh.patches / "files" / NEW_SOURCE
    call = 'extern "C" int fcntl64(int, int, ...);\nint calls() { return fcntl64(0, 0); }\n'
    source.write_text(source.read_text() + call)
    newer = build(fresh)
    tag = "manylinux_2_28_x86_64"
    assert newer.name.endswith(f"-py3-none-{tag}.whl") and not wheel.name.endswith(f"{tag}.whl")
    libraries = [zipfile.ZipFile(path).read(LIBRARY) for path in (wheel, newer)]
    assert (
        small_wheel.platform_tag(libraries) == small_wheel.platform_tag(reversed(libraries)) == tag
    )


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_installing_it_leaves_torch_alone(
    release: FakeRelease, wheel: Path, tmp_path: Path, tool: str
) -> None:
    python = virtual.create_venv(tmp_path / "venv", with_pip=False)
    fake_torch.write_pure_wheel(tmp_path, "fake_dependency", "1.5")

    def command(verb: str, *arguments: str | Path) -> None:
        start = {
            "pip": [sys.executable, "-m", "pip", f"--python={python}", verb],
            "uv": ["uv", "pip", verb, f"--python={python}"],
        }[tool]
        done = subprocess.run([*start, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def torch() -> dict[Path, float]:
        found = python.parents[1].glob("lib/python*/site-packages/torch*/**/*")
        return {path: path.stat().st_mtime_ns for path in found if "lms" not in str(path)}

    source = ("--no-index", f"--find-links={tmp_path}", f"--find-links={release.index}")
    command("install", *source, "torch")
    before = torch()
    assert len(before) > 5
    command("install", *source, f"--find-links={wheel.parent}", "torch_lms")
    assert torch() == before
    command("check")


LOADED = """
import torch
from torch.cuda import memory, summary
print(summary(), torch.cuda.lms.__name__, sorted(torch.cuda.__all__))
torch.cuda.lms.get_size_lms.__globals__["engine"]()
print(summary(), torch.cuda.summary(size=2), memory.summary is summary, memory.untouched())
print(summary.__code__.co_filename == memory.__file__, summary.__code__.co_firstlineno)
"""


def test_it_puts_lms_into_torch(release: FakeRelease, site: Path) -> None:
    (stand_ins,) = release.home.glob("build/*/cmake/stand-ins")
    libraries = f"{site / 'torch' / 'lib'}:{stand_ins}"
    result = run(site, LOADED, LD_LIBRARY_PATH=libraries)
    assert result.returncode == 0, result.stderr
    before, after, place = result.stdout.splitlines()
    functions = ["get_enabled_lms", "get_limit_lms", "get_size_lms", "lms", "reclaim_inactive"]
    functions += ["set_enabled_lms", "set_limit_lms", "set_size_lms", "summary"]
    assert before == f"1 B torch.cuda.lms {functions}"
    assert after == "1 B and LMS 2 B and LMS True 1"
    assert place == "True 4"


REFUSED = """
import torch
assert not torch.cuda.get_enabled_lms() and not torch.cuda.lms.is_loaded()
for function in (torch.cuda.set_enabled_lms, torch.cuda.lms.set_size_lms):
    try:
        function(True if function is torch.cuda.set_enabled_lms else 1)
    except RuntimeError as error:
        last = str(error)
print(last, torch.cuda.summary())
"""


@pytest.mark.parametrize(
    ("name", "old", "new", "messages"),
    [
        pytest.param(
            "version.py",
            f"__version__ = '{VERSION}+cu130'",
            "__version__ = '9.10.0+cu130'",
            None,
            id="the version alone says nothing",
        ),
        pytest.param(
            "version.py",
            COMMIT,
            "f" * 40,
            (f"PyTorch {VERSION}+cu130 with CUDA 13.0, commit {'f' * 12}\n", f"torch=={VERSION})"),
            id="another commit",
        ),
        pytest.param(
            "version.py",
            "Optional[str] = '13.0'",
            "Optional[str] = '12.8'",
            (f"PyTorch {VERSION}+cu130 with CUDA 12.8, commit {COMMIT[:12]}", f"torch=={VERSION})"),
            id="another CUDA",
        ),
        pytest.param(
            "version.py",
            "Optional[str] = '13.0'",
            "Optional[str] = None",
            (f"PyTorch {VERSION}+cu130 without CUDA, commit {COMMIT[:12]}", f"torch=={VERSION})"),
            id="no CUDA",
        ),
    ],
)
def test_a_torch_it_is_not_built_for(
    site: Path, name: str, old: str, new: str, messages: tuple[str, ...] | None
) -> None:
    edit(site / "torch" / name, old, new)
    result = run(site, REFUSED)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith("1 B\n")  # it changed no function
    if messages is None:
        assert "libc10.so" in result.stdout  # it got as far as loading the library
        return
    built_for = f"torch_lms {small_wheel.version()} is built for the official wheels of\n"
    built_for += f"  PyTorch {VERSION} with CUDA 13.0, commit {COMMIT[:12]}\nand you have\n"
    for message in (built_for, str(site / "torch"), *messages):
        assert message in result.stdout


def test_a_library_that_does_not_load(release: FakeRelease, site: Path) -> None:
    """The official libraries were replaced: a symbol is missing."""
    (stand_ins,) = release.home.glob("build/*/cmake/stand-ins")
    result = run(site, REFUSED, LD_LIBRARY_PATH=str(stand_ins))
    assert (result.returncode, result.stderr) == (0, "")
    assert "undefined symbol: _Z8upstreamv" in result.stdout
    assert f"pip install --force-reinstall torch=={VERSION} torch_lms" in result.stdout


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(
            lambda site: (site / CUDA_INIT).write_text(""), id="a torch.cuda like no other"
        ),
        pytest.param(
            lambda site: (site / "torch_lms/torch/cuda/lms.py").unlink(), id="a file is missing"
        ),
    ],
)
def test_it_never_breaks_the_import(site: Path, damage: Callable[[Path], None]) -> None:
    damage(site)
    result = run(site, "import torch; print(torch.__version__)")
    assert (result.returncode, result.stdout) == (0, f"{VERSION}+cu130\n")
    assert "torch_lms cannot add Large Model Support to PyTorch" in result.stderr


def test_it_steps_aside_for_the_lms_wheel(site: Path) -> None:
    with (site / CUDA_INIT).open("a") as file:
        file.write("lms = 'its own'\n")
    code = "import torch.cuda; print(torch.cuda.lms, torch.cuda.__all__, len(torch.cuda.__path__))"
    result = run(site, code)
    assert (result.stdout, result.stderr) == ("its own ['summary'] 1\n", "")


def test_code_is_where_its_name_says(site: Path) -> None:
    """Dynamo leaves alone what is in torch's folder."""
    code = """
import torch
from types import CodeType
def files(code):
    yield code.co_filename
    for part in code.co_consts:
        yield from files(part) if isinstance(part, CodeType) else ()
print(sorted(set(files(torch.cuda.lms._lms_hooks._address_hook.__code__))))
"""
    expected = [str(site / "torch" / "cuda" / "_lms_hooks.py")]
    for _ in ("compiled", "from the cache"):
        assert run(site, code).stdout == f"{expected}\n"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("size=1", "size=2", "line 4 is in no function's body"),
        ('"B"', '"KiB"', "line 1 is in no function's body"),
        ("def untouched", "MORE = 1\n\n\ndef untouched", "statements are added or removed"),
        ("return 1", "return 2", ""),
    ],
)
def test_only_bodies_of_functions_can_be_changed(old: str, new: str, problem: str) -> None:
    before = OFFICIAL[MEMORY]
    if problem:
        with pytest.raises(SeriesError, match=re.escape(f"cannot change {MEMORY}")) as error:
            changed_functions.changed(MEMORY, before, before.replace(old, new))
        assert problem in str(error.value)
    else:
        text = changed_functions.changed(MEMORY, before, before.replace(old, new))
        assert text == f"def untouched():\n    {new}\n"


def test_a_decorated_function_cannot_be_changed() -> None:
    before = "@cache\ndef f():\n    return 1\n"
    with pytest.raises(SeriesError, match="f is decorated"):
        changed_functions.changed(MEMORY, before, before.replace("1", "2"))


def test_another_changed_file_is_refused(fresh: FakeRelease, tmp_path: Path) -> None:
    text = "".join(f"constant_{n} = {n}\n" for n in range(500))
    patch = fake_torch.git_patch(
        tmp_path / "more", {"torch/untouched.py": text}, {"torch/untouched.py": f"{text}more = 1\n"}
    )
    (fresh.series / "0002-more.patch").write_text(patch)
    (fresh.series / "series").write_text("0001-hook.patch\n0002-more.patch\n")
    result = fresh.lms("build", "--addon", "--out", str(fresh.out))
    assert result.returncode == 5
    assert "the small wheel cannot change torch/untouched.py" in result.stderr
    assert list(fresh.out.glob("*")) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--addon", "--python", "3.12"), "the small wheel serves every Python"),
        (("--addon", "9.9.8"), "no LMS series for PyTorch 9.9.8"),
        (("--addon", VERSION, "--machine", "riscv64"), "no official wheel on riscv64"),
        (("--addon", "--machine", "riscv64"), "no release has official wheels on riscv64"),
        ((), "no release to build"),
    ],
)
def test_wrong_arguments(release: FakeRelease, arguments: tuple[str, ...], message: str) -> None:
    result = release.lms("build", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr


@pytest.mark.parametrize(
    ("name", "old", "new", "failed"),
    [
        ("torch_lms/__init__.py", b"Raises nothing", b"Raises", {"content"}),
        (f"torch_lms/releases/{VERSION}/memory.py", b"and LMS", b"or LMS", {"content"}),
        (LIBRARY, b"_Z8upstreamv", b"_Z8upstreamw", {"libraries"}),
        (f"{DIST_INFO}/METADATA", b"Requires-Dist: torch", b"Requires-Dist: torch>=3", {"content"}),
        (f"{DIST_INFO}/WHEEL", b"py3-none-", b"py2-none-", {"content"}),
        (
            f"{DIST_INFO}/RECORD",
            b"torch_lms/__init__.py,sha256=",
            b"torch_lms/__init__.py,",
            {"RECORD"},
        ),
    ],
)
def test_verify(
    release: FakeRelease,
    wheel: Path,
    tmp_path: Path,
    name: str,
    old: bytes,
    new: bytes,
    failed: set[str],
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    record = members.pop(f"{DIST_INFO}/RECORD")
    if name.endswith("RECORD"):
        assert old in record
        fake_torch.write_wheel(tmp_path / wheel.name, members, record.replace(old, new).decode())
    else:
        assert old in members[name]
        members[name] = members[name].replace(old, new)
        fake_torch.write_wheel(tmp_path / wheel.name, members)
    result = release.lms("verify", str(tmp_path / wheel.name))
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert {line[4:].split(":")[0].strip() for line in lines if line.startswith("FAIL")} == failed
    assert result.returncode == 8, result.stderr


def test_verify_sees_a_tag_that_promises_too_much(
    release: FakeRelease, wheel: Path, tmp_path: Path
) -> None:
    renamed = wheel.name.replace("-py3-none-", "-py3-none-manylinux_2_4_x86_64.")
    shutil.copy(wheel, tmp_path / renamed)
    result = release.lms("verify", str(tmp_path / renamed))
    assert result.returncode == 8
    assert f"FAIL  system libraries: the file's name is not {wheel.name}" in result.stdout
