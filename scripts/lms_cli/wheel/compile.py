"""Compiling a series' new sources into libtorch_lms.so.

One library serves all Pythons of a release: it uses no part of Python, and the headers of all its
official wheels are the same. The result is kept under a hash of everything that went into it.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

from lms_cli import download, files, paths, progress, releases
from lms_cli.errors import CompileError
from lms_cli.releases import OfficialWheel, Release
from lms_cli.series import source_layout
from lms_cli.series.series import Applied, Series
from lms_cli.wheel import elf, platforms, toolchain
from lms_cli.wheel.wheelfile import Wheel

LIBRARY = "libtorch_lms.so"
HEADERS = "torch/include/"
API_HEADERS = "torch/csrc/api/include/"  # below HEADERS; upstream's builds look there too
PROJECT = [paths.BUILD / name for name in ("CMakeLists.txt", "portable.cpp", "portable.map")]
SHOWN_ERROR_LINES = 40
NINJA_COUNTS = re.compile(r"\[(\d+)/(\d+)\] ")


def library(
    release: Release, series: Series, applied: Applied, official: Wheel, cached: bool = True
) -> Path | None:
    """The compiled library of a series, from the cache if nothing it depends on changed.

    It is for the machine that the official wheel is for. If not `cached`, CMake's tree is brought
    up to date in any case, for who wants to look into it.

    Returns:
        Its path, or None for a series with nothing to compile.

    Raises:
        CompileError: there is no compiler, or the sources do not compile.
        NetworkError, IntegrityError, SpaceError: CUDA's headers cannot be had.
    """
    if not series.sources():
        return None
    pinned = next(wheel for wheel in release.official if wheel.filename == official.path.name)
    compiler = toolchain.find(pinned.machine)
    headers = headers_digest(official)
    cuda = [
        download.fetch_locked(release.lock, package, pinned.machine)
        for package in release.cuda_headers
    ]
    key = _digest(
        series.sources(),
        sorted(applied.added.items()),
        sorted(applied.changed.items()),
        headers,
        [path.parent.name for path in cuda],
        compiler.identity,
        [path.read_text(encoding="utf-8") for path in PROJECT],
        release.cxx_standard,
        release.cxx11_abi,
    )
    target = paths.home() / "libraries" / key / LIBRARY
    if cached and target.exists():
        return target
    tree = _tree(release, headers, compiler.path)
    doing = f"compiling {LIBRARY} for PyTorch {release.version}, {pinned.machine}"
    with files.locked(tree), progress.step(doing) as advance:
        pristine = unpack_headers(official, tree / "headers", HEADERS)
        cuda_folders = [folder for path in cuda for folder in unpack_headers_of(path)]
        write_tree(tree / "sources", series.sources())
        added = {name: text for name, text in applied.added.items() if name.startswith(HEADERS)}
        changed = {name: text for name, text in applied.changed.items() if name.startswith(HEADERS)}
        write_tree(tree / "added", added)
        write_tree(tree / "changed", changed)
        folders = (HEADERS, HEADERS + API_HEADERS)
        system = [root / folder for root in (tree / "changed", pristine) for folder in folders]
        built = run_cmake(
            paths.BUILD,
            tree,
            "torch_lms",
            LIBRARY,
            {
                "CMAKE_CXX_COMPILER": str(compiler.path),
                "LMS_PORTABLE": str(int(compiler.portable)),
                "LMS_SOURCE_DIR": str(tree / "sources"),
                "LMS_INCLUDE_DIRS": str(tree / "added" / HEADERS),
                "LMS_SYSTEM_INCLUDE_DIRS": ";".join(map(str, [*system, *cuda_folders])),
                "LMS_CUDA_MAJOR": release.cuda_major,
                "LMS_RPATH": run_path(release),
                "LMS_CXX_STANDARD": str(release.cxx_standard),
                "LMS_CXX11_ABI": str(int(release.cxx11_abi)),
            },
            compiler.environment,
            advance,
        )
        if compiler.portable:
            check_portable(built, pinned)
        with files.written_beside(target) as temporary:
            shutil.copyfile(built, temporary)
    return target


def official_headers(release: Release) -> Path:
    """A release's headers as upstream published them.

    Raises:
        NetworkError, WheelError: they cannot be had.
    """
    wheel = release.wheel_for(releases.running_python())
    with Wheel(download.fetch_texts(wheel)) as official:
        tree = _tree(release, headers_digest(official), toolchain.find(wheel.machine).path)
        with files.locked(tree):
            return unpack_headers(official, tree / "headers", HEADERS) / HEADERS


def _tree(release: Release, headers: str, compiler: Path) -> Path:
    """Where a release's library is compiled, kept for the next time."""
    made_of = (release.version, headers, str(compiler), str(paths.BUILD))  # CMake keeps to its own
    return paths.home() / "build" / _digest(*made_of)[:12]


def run_path(release: Release) -> str:
    """Where the library looks for others: its own folder, then where pip puts NVIDIA's packages."""
    cudart = "cuda_runtime" if int(release.cuda_major) < 13 else f"cu{release.cuda_major}"
    return f"$ORIGIN:$ORIGIN/../../nvidia/{cudart}/lib"


def check_portable(built: Path, pinned: OfficialWheel) -> None:
    """Check that a library runs on all systems that it was compiled for.

    Raises:
        CompileError: it needs what some of them lack.
    """
    platform = pinned.promised_platform
    with built.open("rb") as stream:
        missing = platforms.too_new(elf.needs(stream), platform)
    if missing:
        raise CompileError(
            f"{LIBRARY} needs what systems of {platform} may lack: {', '.join(missing)}",
            "Do without it in the sources, or define it in build/portable.cpp.",
        )


def headers_digest(wheel: Wheel) -> str:
    """A digest of a wheel's headers, from names and CRCs."""
    names = (name for name in wheel.members if name.startswith(HEADERS) and name[-1] != "/")
    infos = [wheel.members[name] for name in names]
    return _digest(sorted((info.filename, info.CRC, info.file_size) for info in infos))


def unpack_headers(wheel: Wheel, target: Path, prefixes: str | tuple[str, ...]) -> Path:
    """Unpack the members below some prefixes into `target`, once."""
    if not target.exists():
        doing = f"unpacking headers of {wheel.path.name}"
        with progress.step(doing, brief=True), files.folder_beside(target) as temporary:
            names = [
                name
                for name in wheel.members
                if name.startswith(prefixes) and not name.endswith("/")
            ]
            wheel.zip.extractall(temporary, names)
    return target


def unpack_headers_of(path: Path) -> list[Path]:
    """The include folders of one of NVIDIA's wheels, unpacked next to it in the download cache."""
    target = path.parent / "headers"
    with Wheel(path) as wheel:
        roots = {
            str(PurePosixPath(*parts[: parts.index("include") + 1]))
            for name in wheel.members
            if "include" in (parts := PurePosixPath(name).parts)
            and name.endswith(source_layout.HEADER_SUFFIXES)
        }
        unpack_headers(wheel, target, tuple(f"{root}/" for root in roots))
    return [target / root for root in sorted(roots)]


def write_tree(folder: Path, texts: dict[str, str]) -> None:
    """Make a folder hold exactly these files, touching only those that differ."""
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder).as_posix() not in texts:
            path.unlink()
    for name, text in texts.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            files.write_text(path, text)
    folder.mkdir(parents=True, exist_ok=True)


def run_cmake(
    project: Path,
    tree: Path,
    target: str,
    product: str,
    settings: dict[str, str],
    environment: dict[str, str] | None = None,
    advance: progress.Advance | None = None,
) -> Path:
    """Configure a CMake project and build one of its targets.

    Args:
        project: the folder with its CMakeLists.txt.
        tree: where everything made goes, kept for the next time.
        target: what to build.
        product: the name of the file that this makes.
        settings: CMake's variables.
        environment: environment variables, those of this process if not given.
        advance: is told how many of Ninja's commands are done.

    Returns:
        The path of that file.

    Raises:
        CompileError: with the compiler's first errors.
    """
    output = tree / "cmake"
    tools = Path(sys.prefix) / "bin"
    definitions = [f"-D{name}={value}" for name, value in settings.items()]
    configure = [tools / "cmake", "-G", "Ninja", "-S", project, "-B", output, *definitions]
    commands = (
        [*configure, f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", "-DCMAKE_BUILD_TYPE=None"],
        [tools / "cmake", "--build", output, "--target", target],
    )
    log = tree / "compile.log"
    text = ""
    for command in commands:
        status, said = run_counted([str(word) for word in command], environment, advance)
        text += said
        files.write_text(log, text)
        if status != 0:
            errors = _errors(said.replace(f"{tree}/", ""))
            raise CompileError(f"{product} does not compile:\n{errors}", f"Full output: {log}")
    return output / product


def run_counted(
    command: list[str], environment: dict[str, str] | None, advance: progress.Advance | None
) -> tuple[int, str]:
    """The status of a command, and all that it said; `advance` is told what Ninja counts."""
    lines = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if advance and (counted := NINJA_COUNTS.match(line)):
                advance(int(counted[1]), int(counted[2]))
    return process.returncode, "".join(lines)


def _errors(output: str) -> str:
    """The compiler's own lines, without the commands and the progress that Ninja prints."""
    noise = re.compile(r"\[\d+/\d+\]|FAILED: |ninja: |/\S+ .* -c \S+$")
    lines = [line for line in output.splitlines() if not noise.match(line)]
    return "\n".join(f"  {line}" for line in lines[:SHOWN_ERROR_LINES])


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
