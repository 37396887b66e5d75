"""Draw device and host memory over the operators of a training run.

A program of its own because matplotlib is in the LMS environment, not among the tools.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

MIB = 1 << 20


def main() -> None:
    """Read a report of lms_demo/train.py and write a picture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--title", required=True)
    parser.add_argument("--capacity", type=int, required=True, help="bytes of device memory")
    parser.add_argument("--need", type=int, required=True, help="bytes at the peak, unlimited")
    args = parser.parse_args()

    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    timeline = json.loads(args.report.read_text(encoding="utf-8"))["timeline"]
    operators = [row[0] for row in timeline]
    device = [row[1] / MIB for row in timeline]
    host = [row[2] / MIB for row in timeline]
    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    axes.stackplot(
        operators,
        device,
        host,
        labels=("on the device", "paged out to the host"),
        colors=("#2f6db5", "#f0b35b"),
    )
    for size, label, style in (
        (args.capacity, "device memory", "-"),
        (args.need, "peak need without LMS", "--"),
    ):
        axes.axhline(size / MIB, color="#333333", linestyle=style, linewidth=1)
        axes.annotate(
            f"{label}: {size / MIB:,.0f} MiB",
            xy=(0.01, size / MIB),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            fontsize=9,
        )
    axes.set(xlabel="operators", ylabel="MiB", title=f"{args.title} trained with LMS")
    axes.set_ylim(0, args.need / MIB * 1.25)
    axes.margins(x=0)
    axes.legend(loc="upper right", ncols=2, fontsize=9)
    figure.savefig(args.out, dpi=120)


if __name__ == "__main__":
    main()
