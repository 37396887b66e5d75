"""Draw what several jobs did on their devices, from `jobs.json`.

A program of its own because matplotlib is in the LMS environment, not among the tools. Prints the
paths of the pictures.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def timelines(run: dict[str, Any], path: Path) -> None:
    """Each device over time, with a colour for each job."""
    import matplotlib.pyplot as plt

    devices = run["devices"]
    figure, axes = plt.subplots(figsize=(10, 1.8 + 0.4 * devices), layout="constrained")
    colours = plt.get_cmap("tab20" if len(run["jobs"]) > 10 else "tab10")
    for number, (job, spans) in enumerate(zip(run["jobs"], run["spans"])):
        for device in range(devices):
            bars = [
                (begin / 1e9, (end - begin) / 1e9) for where, begin, end in spans if where == device
            ]
            label = f"{number + 1} {job}" if device == 0 else None
            colour = colours(number % colours.N)
            axes.broken_barh(bars, (-device - 0.4, 0.8), color=colour, label=label)
    axes.axvline(run["bound_ns"] / 1e9, color="#333333", linestyle="--", linewidth=1)
    axes.set_yticks(
        [-device for device in range(devices)],
        [f"device {device}" for device in range(devices)],
        fontsize=8,
    )
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds; dashed: all devices compute to the end")
    figure.legend(fontsize=7, ncols=4, loc="outside lower center")
    figure.suptitle(run["title"], fontsize=10)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """Draw all pools in a file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    results = parser.parse_args().results

    import matplotlib as mpl

    mpl.use("Agg")
    for run in json.loads(results.read_text(encoding="utf-8"))["runs"]:
        if run["status"] == "ok" and run["way"] == "pool":
            path = results.with_name(f"jobs-{run['devices']}.png")
            timelines(run, path)
            print(path)


if __name__ == "__main__":
    main()
