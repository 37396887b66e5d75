"""What the official wheels of a release say of themselves, for a release that is not listed yet."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from lms_cli import download, files, releases
from lms_cli.errors import IntegrityError, UsageError
from lms_cli.index import remote
from lms_cli.releases import OfficialWheel, Release
from lms_cli.wheel import graft
from lms_cli.wheel.wheelfile import Wheel

OUR_REVISION = "lms1"  # of the label: 2.11.0+cu130.lms1
CPP_EXTENSION = "torch/utils/cpp_extension.py"
LAST_WITH_OLD_ABI = (2, 6)  # its wheels for x86-64 use the C++ library's ABI from before C++11
# CUDA's packages were renamed with CUDA 13; cuda_runtime.h includes headers that the compiler's
# package has.
HEADERS = ("nvidia-cuda-runtime", "nvidia-cuda-crt")
HEADERS_OF_12 = ("nvidia-cuda-runtime-cu12", "nvidia-cuda-nvcc-cu12")


def listed(version: str) -> list[OfficialWheel]:
    """The official wheels of a release for Linux on the index; of several builds of one, the last.

    Raises:
        NetworkError: the index cannot be reached.
        UsageError: it has none.
    """
    found: dict[tuple[str, str], tuple[int, OfficialWheel]] = {}
    for row in remote.listing("torch"):
        match = releases.WHEEL_NAME.fullmatch(row.filename)
        if not match or match["version"] != version or row.yanked:
            continue
        build = int((match["build"] or "-0")[1:])
        wheel = OfficialWheel(row.filename, row.sha256, row.size)
        key = (wheel.machine, wheel.python)
        if key not in found or build > found[key][0]:
            found[key] = (build, wheel)
    if not found:
        raise UsageError(
            f"the index has no wheel of PyTorch {version} for Linux",
            "Name a release it has, or wheels on disk with --wheel.",
        )
    return [wheel for _, (_, wheel) in sorted(found.items(), key=lambda item: _order(item[0]))]


def on_disk(given: Iterable[Path]) -> list[OfficialWheel]:
    """Official wheels from files, which go to the download cache: release candidates, nightlies.

    Raises:
        UsageError: a file is missing, or is no wheel of torch for Linux.
    """
    wheels = []
    for path in given:
        try:
            wheel = OfficialWheel(path.name, files.sha256_of(path), path.stat().st_size)
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} cannot be used: {error}") from error
        download.keep(path, wheel.sha256)
        wheels.append(wheel)
    return sorted(wheels, key=lambda wheel: _order((wheel.machine, wheel.python)))


def describe(version: str, wheels: list[OfficialWheel], patches: Path) -> tuple[Release, Wheel]:
    """The row of a release, and the texts of one of its wheels.

    Args:
        version: what the release is called in the list.
        wheels: all of its wheels; those without CUDA are left out.
        patches: the folder of the list.

    Raises:
        UsageError: no wheel for x86-64 has CUDA.
        IntegrityError: wheels were built from different commits.
    """
    facts: dict[str, dict[str, str]] = {}  # by machine
    texts: dict[str, Wheel] = {}
    for wheel in wheels:
        if wheel.machine not in texts:
            texts[wheel.machine] = Wheel(download.fetch_texts(wheel))
            facts[wheel.machine] = graft.facts(texts[wheel.machine])
    ours = facts.get(releases.MACHINE, {})
    if "cuda" not in ours:
        raise UsageError(f"PyTorch {version} has no wheel with CUDA for {releases.MACHINE}")
    if len({row["git_version"] for row in facts.values()}) != 1:
        raise IntegrityError(f"the wheels of PyTorch {version} are of different commits: {facts}")
    official = texts[releases.MACHINE]
    cuda = ours["cuda"]
    standards = re.findall(r"-std=c\+\+(\d+)", official.text(CPP_EXTENSION) or "")
    public = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    release = Release(
        version=version,
        tag=f"v{version}",
        commit=ours["git_version"],
        cuda=cuda,
        label=f"cu{cuda.replace('.', '')}.{OUR_REVISION}",
        cxx_standard=min(map(int, standards), default=20),
        cxx11_abi=public > LAST_WITH_OLD_ABI,
        cuda_headers=HEADERS_OF_12 if cuda.startswith("12.") else HEADERS,
        official=tuple(wheel for wheel in wheels if facts[wheel.machine].get("cuda") == cuda),
        patches=patches,
    )
    return release, official


def _order(key: tuple[str, str]) -> tuple[bool, str, int, str]:
    machine, python = key
    minor = int(re.findall(r"\d+", python)[0][1:])
    return machine != releases.MACHINE, machine, minor, python
