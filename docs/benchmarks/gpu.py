"""Check and measure LMS on a machine with an NVIDIA GPU and the official PyTorch.

    python docs/benchmarks/gpu.py --wheel torch-2.11.0+cu130.lms1-cp312-...whl --out results

Nothing is installed: the files of the LMS wheel are put over a copy of the PyTorch that runs this
script, whose release and Python must be the wheel's. Then the whole-program tests run on the GPU,
and the demo's models train with a limit of a half, a fourth and an eighth of what they need. The
table goes to OUT/results.md, with the card's name.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "scripts" / "lms_demo" / "train.py"
TESTS = ("test_programs.py", "test_programs_scenarios.py", "test_tensor_surface.py")
RATIOS = (2, 4, 8)


def main() -> int:
    """Command line; the exit status is 0 if every test passed and all weights are identical."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--wheel", type=Path, required=True, help="LMS wheel for this Python")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--steps", type=int, default=5, help="training steps of each run")
    parser.add_argument("--skip-tests", action="store_true", help="only measure")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    environment = overlay(args.wheel, args.out / "site")
    passed = args.skip_tests or run_tests(environment, args.out)
    lines, identical = measure(environment, args.out, args.steps)
    text = "\n".join([f"Card: {card(environment)}", "", *lines, ""])
    (args.out / "results.md").write_text(text, encoding="utf-8")
    print(text)
    return 0 if passed and identical else 1


def overlay(wheel: Path, site: Path) -> dict[str, str]:
    """Copy the installed torch to `site`, put the wheel's files over it; return the environment."""
    found = [Path(folder) / "torch" for folder in sys.path if (Path(folder) / "torch").is_dir()]
    if not found:
        raise SystemExit("there is no PyTorch in this Python's path: install torch first")
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(found[0], site / "torch", copy_function=link)
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            target = site / member.filename
            is_ours = member.filename.endswith((".py", ".h", "/libtorch_lms.so"))
            if not member.filename.startswith("torch/") or not is_ours:
                continue
            data = archive.read(member)
            if not target.is_file() or target.read_bytes() != data:
                target.unlink(missing_ok=True)  # it may be a link to the installed file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
    # torch/lib finds NVIDIA's libraries relative to itself.
    if (found[0].parent / "nvidia").is_dir():
        (site / "nvidia").symlink_to(found[0].parent / "nvidia")
    paths = [str(site.resolve()), str(ROOT / "scripts"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def link(source: str, target: str) -> None:
    """A hard link where the file system allows one, else a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def card(environment: dict[str, str]) -> str:
    """Name of the GPU and of the PyTorch build."""
    code = "import torch; print(torch.cuda.get_device_name(), '/ PyTorch', torch.__version__)"
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout.strip()


def run_tests(environment: dict[str, str], out: Path) -> bool:
    """Run the whole-program tests on the GPU; their output goes to OUT/tests.log."""
    tests = [str(ROOT / "tests" / "engine" / name) for name in TESTS]
    command = [sys.executable, "-m", "pytest", "-q", "--device", "cuda", *tests]
    with (out / "tests.log").open("w", encoding="utf-8") as log:
        result = subprocess.run(
            command, env=environment, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT
        )
    print("\n".join((out / "tests.log").read_text(encoding="utf-8").splitlines()[-15:]))
    return result.returncode == 0


def measure(environment: dict[str, str], out: Path, steps: int) -> tuple[list[str], bool]:
    """Rows of the table, and whether every run with LMS gave the unlimited run's weights."""
    lines = [
        "| model | need | limit | without LMS | peak reserved | paged in | paged out | time |"
        " weights identical |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    identical = True
    for model in ("gpt", "resnet"):
        ideal, ideal_seconds = train(environment, out, model, "unlimited", steps, 0)
        for ratio in RATIOS:
            limit = ideal["needed_bytes"] // ratio
            off, _ = train(environment, out, model, "off", steps, limit)
            on, seconds = train(environment, out, model, "on", steps, limit)
            same = on["status"] == "ok" and on["weights_sha256"] == ideal["weights_sha256"]
            identical = identical and same
            cells = [
                model,
                mib(ideal["needed_bytes"]),
                f"{mib(limit)} ({ratio}x)",
                "out of memory" if off["status"] == "oom" else "runs",
                mib(on["peak_device_bytes"]) if on["status"] == "ok" else on["status"],
                mib(on["paged_in_bytes"]),
                mib(on["paged_out_bytes"]),
                f"{seconds / ideal_seconds:.2f}x",
                "yes" if same else "NO",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "Time: of the whole process, start included, over the unlimited run's."]
    return lines, identical


def train(
    environment: dict[str, str], out: Path, model: str, mode: str, steps: int, limit: int
) -> tuple[dict[str, Any], float]:
    """One run of the demo's program: its report, and seconds of wall time."""
    report = out / f"{model}-{mode}-{limit}.json"
    command = [sys.executable, str(PROGRAM), "--model", model, "--mode", mode]
    command += ["--steps", str(steps), "--json", str(report)]
    if limit:
        command += ["--limit", str(limit)]
    begin = time.perf_counter()
    subprocess.run(command, env=environment, check=True)
    return json.loads(report.read_text(encoding="utf-8")), time.perf_counter() - begin


def mib(size: int) -> str:
    """Bytes as text."""
    return f"{size / 2**20:,.0f} MiB"


if __name__ == "__main__":
    sys.exit(main())
