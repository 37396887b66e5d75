"""Draw the benchmark's plots from its results.

A program of its own because matplotlib is in the LMS environment, not among the tools. Prints the
paths of the pictures.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

COLOURS = {
    "ideal": "#333333",
    "lms": "#2f6db5",
    "lms_copies": "#8fb4dd",
    "lms_deterministic": "#1f4a7d",
    "original": "#9bbfe3",
    "save_on_cpu": "#d0743c",
    "checkpoint": "#4f9d5b",
    "activation_offload": "#b3589a",
    "accelerate": "#8c8c3e",
}
ENGINES = (
    ("compute", "#2f6db5"),
    ("h2d", "#4f9d5b"),
    ("d2h", "#d0743c"),
    ("disk", "#8d6cab"),
    ("collective", "#8c8c3e"),
)
NOT_ALWAYS = ("disk", "collective")  # a picture has rows for them if they are used
AGAIN = "#e3b505"  # of compute, what LMS makes again


def throughput(rows: list[dict[str, Any]], path: Path) -> None:
    """Samples per second of all rivals over the oversubscription, for one subject."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    good = [row for row in rows if row["status"] == "ok"]
    for rival in dict.fromkeys(row["rival"] for row in good):
        points = [
            (row["ratio"], row["batch"] / row["step_ns"] * 1e9)
            for row in good
            if row["rival"] == rival
        ]
        style = {"color": COLOURS.get(rival), "label": rival}
        if rival == "ideal":
            axes.axhline(points[0][1], linestyle="--", linewidth=1, **style)
        else:
            front = 3 if rival == "lms" else 2
            axes.plot(*zip(*sorted(points)), marker="o", markersize=4, zorder=front, **style)
    ratios = sorted({row["ratio"] for row in rows if row["ratio"]})
    axes.set_xscale("log")
    axes.set_xticks(ratios, [f"{ratio:g}" for ratio in ratios])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set(xlabel="peak need / device memory", ylabel="samples per second")
    axes.set_title(rows[0]["title"])
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def gantt(picture: dict[str, Any], path: Path) -> None:
    """Compute, copies, disk and collectives in one iteration, for each rival, on one scale.

    What LMS makes again is a colour of its own within compute.
    """
    import matplotlib.pyplot as plt

    rivals = picture["rivals"]
    used = {name for shown in rivals.values() for name, spans in shown["gantt"].items() if spans}
    engines = [entry for entry in ENGINES if entry[0] in used or entry[0] not in NOT_ALWAYS]
    figure, rows = plt.subplots(
        len(rivals),
        figsize=(10, 0.6 + 0.9 * len(rivals)),
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    for axes, (rival, shown) in zip(rows[:, 0], rivals.items()):
        levels = [*enumerate(engines), (0, ("again", AGAIN))]
        for level, (engine, colour) in levels:
            spans = shown["gantt"].get(engine, [])
            bars = [(begin / 1e6, (end - begin) / 1e6) for begin, end in spans]
            axes.broken_barh(bars, (-level - 0.4, 0.8), color=colour)
        axes.axvline(shown["gantt_ns"] / 1e6, color="#333333", linewidth=1)
        places = [-level for level in range(len(engines))]
        axes.set_yticks(places, [engine for engine, _ in engines], fontsize=7)
        axes.set_ylim(places[-1] - 0.6, 0.6)
        axes.set_ylabel(rival, rotation=0, ha="right", va="center", labelpad=32, fontsize=8)
    rows[-1, 0].set_xlabel("milliseconds of one iteration")
    rows[-1, 0].set_xlim(left=0)
    figure.suptitle(picture["title"], fontsize=10)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """Draw everything in a folder with results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    folder = parser.parse_args().folder

    import matplotlib as mpl

    mpl.use("Agg")
    cells = json.loads((folder / "results.json").read_text(encoding="utf-8"))["cells"]
    for slug in dict.fromkeys(row["slug"] for row in cells):
        rows = [row for row in cells if row["slug"] == slug]
        if any(row["status"] == "ok" and row["ratio"] for row in rows):
            throughput(rows, folder / f"{slug}.png")
            print(folder / f"{slug}.png")
    pictures = json.loads((folder / "gantt.json").read_text(encoding="utf-8"))
    for slug, picture in pictures.items():
        gantt(picture, folder / f"{slug}-gantt.png")
        print(folder / f"{slug}-gantt.png")


if __name__ == "__main__":
    main()
