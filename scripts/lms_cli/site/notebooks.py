"""Making the notebooks of the examples: running each script's cells and commands."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

from lms_cli import files, paths, programs
from lms_cli.environments.lms_environment import Environment
from lms_cli.errors import DocumentError
from lms_cli.site import cells
from lms_cli.site.cells import Cell

FOLDER = paths.ROOT / "docs" / "examples"
MIB = 1 << 20
# Bytes of device memory with which each has to page at its usual sizes.
LIMITS = {
    "diffusion": 40 * MIB,
    "fine_tune": 60 * MIB,
    "lstm": 30 * MIB,
    "many_models": 110 * MIB,
    "volumes": 60 * MIB,
}
RUNNER = Path(__file__).with_name("run_cells.py")
COMMAND = "../../scripts/lms"  # from FOLDER
SHOWN_LINES = 20  # of what an example that fails has said


def make(name: str, environment: Environment, overlay: Environment) -> Path:
    """Run an example and its commands, and write its notebook; return the path.

    Args:
        name: of the example, a key of LIMITS.
        environment: has the LMS wheel.
        overlay: the same with the libraries that the examples use.

    Raises:
        DocumentError: a cell fails.
    """
    found = cells.of((FOLDER / name).with_suffix(".py").read_text(encoding="utf-8"))
    printed = iter(_run(name, found, environment, overlay))
    texts = []
    for cell in found:
        if cell.is_command:
            texts.append(_command(cell, environment))
        else:
            texts.append(next(printed) if cell.kind == "code" else "")
    path = (FOLDER / name).with_suffix(".ipynb")
    text = json.dumps(cells.notebook(found, texts), indent=1, ensure_ascii=False)
    files.write_text(path, text + "\n")
    return path


def _run(name: str, found: list[Cell], environment: Environment, overlay: Environment) -> list[str]:
    """What the cells of Python print on the simulated device."""
    settings = programs.Settings(lms="off", device="sim", limit=LIMITS[name])
    code = [cell.source for cell in found if cell.kind == "code" and not cell.is_command]
    done = subprocess.run(
        [str(overlay.python), str(RUNNER)],
        env=programs.variables(environment, settings, overlay),
        cwd=FOLDER,
        input=json.dumps(code),
        capture_output=True,
        text=True,
    )
    _require(done, name)
    return list(json.loads(done.stdout))


def _command(cell: Cell, environment: Environment) -> str:
    """What a command prints, but for the last line: that names a folder which a reader has not."""
    program, verb, *words = shlex.split(cell.source.removeprefix("!").replace("\\\n", " "))
    if program != COMMAND:
        raise DocumentError(f"an example runs {program}", f"Its commands may be {COMMAND}.")
    command = [sys.executable, str(paths.SCRIPT), verb, "--environment", str(environment.folder)]
    done = subprocess.run([*command, *words], cwd=FOLDER, capture_output=True, text=True)
    _require(done, cell.source)
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines()[:-1])


def _require(done: subprocess.CompletedProcess[str], what: str) -> None:
    if done.returncode != 0:
        said = "\n".join(f"  {line}" for line in done.stderr.splitlines()[-SHOWN_LINES:])
        raise DocumentError(f"{what} ended with status {done.returncode}:\n{said}")
