"""A tiny release of torch: an official wheel, a series for it, and the folders `lms` works in.

Everything is real (wheel, shared library, patches made by git, pip), only small.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from lms_cli import paths, releases
from lms_cli.environments import toolbox
from lms_cli.series import source_layout

VERSION = "9.9.9"
NEW = "9.10.0"  # of the next release, see `successor`
LABEL = "cu130.lms1"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
PYTHON = releases.running_python()
PLATFORM = "manylinux_2_28_x86_64"
WHEEL_NAME = f"torch-{VERSION}-{PYTHON.rstrip('t')}-{PYTHON}-{PLATFORM}.whl"
ANOTHER_NAME = f"torch-{VERSION}-cp399-cp399-{PLATFORM}.whl"  # of another Python
ARM_NAME = ANOTHER_NAME.replace("x86_64", "aarch64")
LMS_NAME = WHEEL_NAME.replace(VERSION, f"{VERSION}+{LABEL}")

HEADER = "c10/core/Storage.h"
HEADER_TEXT = "#pragma once\n\n" + "".join(f"int storage_{n}();\n" for n in range(12))
CUDA_INIT = "torch/cuda/__init__.py"
CUDA_INIT_TEXT = '"""Fake CUDA."""\n\n\ndef is_available():\n    return False\n'
VERSION_PY = f"""from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']
__version__ = '{VERSION}+cu130'
debug = False
cuda: Optional[str] = '13.0'
git_version = '{COMMIT}'
hip: Optional[str] = None
"""
METADATA = f"""Metadata-Version: 2.4
Name: torch
Version: {VERSION}
Requires-Dist: fake-dependency>=1

Version: this line is in the description and stays.
"""
NEW_HEADER = "aten/src/ATen/cuda/Fake.h"
NEW_SOURCE = "aten/src/ATen/cuda/detail/Fake.cpp"
NEW_FILES = {
    NEW_HEADER: "#pragma once\n\nnamespace fake {\nint answer();\n}\n",
    NEW_SOURCE: "#include <ATen/cuda/Fake.h>\n#include <c10/core/Storage.h>\n\nint upstream();\n\n"
    'namespace fake {\n__attribute__((visibility("default"))) int answer() {\n'
    "  return upstream() + lms_hook();\n}\n} // namespace fake\n",
    "torch/cuda/lms.py": '"""Fake LMS."""\n',
}
PATCH_MESSAGE = """\
Hook the storage

Why a patch: there is no hook.

Upstream-status: not submitted.
---
"""
LOCK = f"fake-dependency==1.5 \\\n    --hash=sha256:{'0' * 64}\n"


@dataclass
class FakeRelease:
    """Where everything of one fake release is."""

    root: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def index(self) -> Path:
        return self.root / "index"

    @property
    def official(self) -> Path:
        return self.index / WHEEL_NAME

    @property
    def patches(self) -> Path:
        return self.root / "patches"

    @property
    def series(self) -> Path:
        return self.patches / f"v{VERSION}"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def downloads(self) -> Path:
        return self.root / "cache" / "pytorch-lms"

    @property
    def out(self) -> Path:
        return self.root / "out"

    def lms(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the command as a user would."""
        return subprocess.run(
            [sys.executable, str(paths.SCRIPT), *arguments],
            env={**self.environment(), **variables},
            capture_output=True,
            text=True,
        )

    def python(self, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run code that imports the tooling, in the tools' environment."""
        return subprocess.run(
            [str(self.home / tools_folder().name / "bin" / "python"), "-c", code],
            env={**self.environment(), "PYTHONPATH": str(paths.ROOT / "scripts"), **variables},
            capture_output=True,
            text=True,
        )

    def keep(self, wheel: Path) -> None:
        """Put an official wheel into the download cache."""
        target = self.downloads / hashlib.sha256(wheel.read_bytes()).hexdigest() / wheel.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(wheel, target)

    def build(self, **variables: str) -> subprocess.CompletedProcess[str]:
        """Build the wheel into `out`."""
        return self.lms("build", VERSION, "--out", str(self.out), **variables)

    def built(self) -> Path:
        """Build the wheel into `out`, which must work; return its path."""
        result = self.build()
        assert result.returncode == 0, result.stderr
        return Path(result.stdout.splitlines()[-1])

    def environment(self) -> dict[str, str]:
        """A process environment in which pip sees only this release's index."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PIP_", "LMS_")) and name != "SOURCE_DATE_EPOCH"
        }
        return {
            **inherited,
            "LMS_HOME": str(self.home),
            "LMS_PATCHES": str(self.patches),
            "XDG_CACHE_HOME": str(self.root / "cache"),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.index),
            "PIP_RETRIES": "0",
            "CXX": "c++",  # the pinned compiler is not on this index
            **self.variables,
        }

    def pin(self, **changes: object) -> None:
        """Write releases.yaml for the official wheel as it is, with changes to the pins."""
        content = self.official.read_bytes()
        wheel = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        row = {
            "tag": f"v{VERSION}",
            "commit": changes.pop("commit", COMMIT),
            "cuda": "13.0",
            "label": LABEL,
            "cxx_standard": 17,
            "cxx11_abi": changes.pop("cxx11_abi", True),
            "cuda_headers": [],
            "wheels": {WHEEL_NAME: {**wheel, **changes}},
        }
        text = yaml.safe_dump({"default": VERSION, "releases": {VERSION: row}})
        (self.patches / releases.FILE_NAME).write_text(text)

    def pin_another(self, name: str) -> None:
        """Pin another wheel of the index too, as it is."""
        path = self.patches / releases.FILE_NAME
        content = yaml.safe_load(path.read_text())
        wheel = (self.index / name).read_bytes()
        pins = {"sha256": hashlib.sha256(wheel).hexdigest(), "size": len(wheel)}
        content["releases"][VERSION]["wheels"][name] = pins
        path.write_text(yaml.safe_dump(content, sort_keys=False))


def tools_folder() -> Path:
    """The environment of the `lms` command, made if need be."""
    return toolbox.make(toolbox.LOCK, "the tools of this command").parents[1]


def make(root: Path) -> FakeRelease:
    """Make a fake release in an empty folder."""
    fake = FakeRelease(root)
    for folder in (fake.index, fake.series, fake.home):
        folder.mkdir(parents=True)
    tools = tools_folder()
    (fake.home / tools.name).symlink_to(tools)
    write_wheel(fake.official, official_members(root))
    fake.pin()
    for name, text in NEW_FILES.items():
        path = fake.patches / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (fake.series / "requirements.lock").write_text(LOCK)
    (fake.series / "series").write_text("# why each exists is in its header\n0001-hook.patch\n")
    patch = git_patch(
        root / "upstream",
        {HEADER: HEADER_TEXT, CUDA_INIT: CUDA_INIT_TEXT},
        {
            HEADER: HEADER_TEXT.replace(
                "int storage_5();\n", "int storage_5();\ninline int lms_hook() { return 42; }\n"
            ),
            CUDA_INIT: CUDA_INIT_TEXT + "\n\ndef set_enabled_lms(enable):\n    pass\n",
        },
    )
    diff = patch[patch.index("diff --git ") :]
    (fake.series / "0001-hook.patch").write_text(PATCH_MESSAGE + diff)
    return fake


def official_members(scratch: Path) -> dict[str, bytes]:
    """Content of the official wheel, RECORD aside."""
    library = scratch / "libtorch_cpu.so"
    source = scratch / "upstream.cpp"
    source.write_text("int upstream() { return 0; }\n")
    subprocess.run(["c++", "-shared", "-fPIC", "-o", library, source], check=True)
    text = {
        "torch/__init__.py": "from torch.version import __version__\n",
        "torch/version.py": VERSION_PY,
        "torch/untouched.py": "".join(f"constant_{n} = {n}\n" for n in range(500)),
        CUDA_INIT: CUDA_INIT_TEXT,
        f"torch/include/{HEADER}": source_layout.guarded(HEADER_TEXT),
        f"torch-{VERSION}.dist-info/METADATA": METADATA,
        f"torch-{VERSION}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: false\n"
        f"Tag: {PYTHON.rstrip('t')}-{PYTHON}-{PLATFORM}\n",
    }
    members = {name: value.encode() for name, value in text.items()}
    return {**members, "torch/lib/libtorch_cpu.so": library.read_bytes()}


def successor(fake: FakeRelease, texts: dict[str, str | None]) -> Path:
    """Write the official wheel of the next release: the old one with other texts (None: gone)."""
    changes = {"torch/version.py": VERSION_PY.replace(VERSION, NEW), **texts}
    members = {}
    for name, content in official_members(fake.root).items():
        text = changes.pop(name, content)
        new_name = name.replace(f"torch-{VERSION}", f"torch-{NEW}")
        if text is not None:
            members[new_name] = text.encode() if isinstance(text, str) else text
    members |= {name: text.encode() for name, text in changes.items() if text is not None}
    metadata = f"torch-{NEW}.dist-info/METADATA"
    members[metadata] = members[metadata].replace(
        f"Version: {VERSION}".encode(), f"Version: {NEW}".encode()
    )
    path = fake.index / WHEEL_NAME.replace(VERSION, NEW)
    write_wheel(path, members)
    return path


def write_wheel(path: Path, members: dict[str, bytes], record: str | None = None) -> None:
    """Write a wheel with the standard library alone, independently of the code under test."""
    dist_info = next(name.split("/")[0] for name in members if ".dist-info/" in name)
    rows = [f"{name},{digest(content)},{len(content)}" for name, content in members.items()]
    rows.append(f"{dist_info}/RECORD,,")
    text = "\n".join(rows) + "\n" if record is None else record
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**members, f"{dist_info}/RECORD": text.encode()}.items():
            archive.writestr(
                zipfile.ZipInfo(name, (2026, 1, 2, 3, 4, 6)), content, zipfile.ZIP_DEFLATED
            )


def write_pure_wheel(folder: Path, name: str, version: str, requirement: str = "") -> Path:
    """Write the wheel of a package with one empty module."""
    dist_info = f"{name}-{version}.dist-info"
    requires = f"Requires-Dist: {requirement}\n" if requirement else ""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}"
    members = {
        f"{name}.py": b"",
        f"{dist_info}/METADATA": metadata.encode(),
        f"{dist_info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = folder / f"{name}-{version}-py3-none-any.whl"
    write_wheel(path, members)
    return path


def digest(content: bytes) -> str:
    """A RECORD digest."""
    value = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"sha256={value}"


def git_patch(repository: Path, before: dict[str, str], after: dict[str, str]) -> str:
    """The patch between two states of a repository, as git exports it."""

    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
        command = ["git", "-C", str(repository), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    repository.mkdir(parents=True)
    git("init", "--quiet")
    for message, state in (("Upstream", before), ("Hook the storage", after)):
        for name, text in state.items():
            (repository / name).parent.mkdir(parents=True, exist_ok=True)
            (repository / name).write_text(text)
        git("add", "--all")
        git("commit", "--quiet", "--message", message)
    arguments = ("--zero-commit", "--full-index", "--no-signature", "--no-stat", "--stdout", "-1")
    return git("format-patch", *arguments)
