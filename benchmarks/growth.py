"""Plots of cost against size with fitted exponents."""

import csv
import os
import pathlib

import formatting
import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib import ticker


def write(folder, name, panels, unit, columns=4):
    """Writes NAME.csv and NAME.png.

    Args:
        folder: Folder of both files.
        name: Name of both files.
        panels: Mapping of panel titles to `(axis label, {curve: [(size, cost)]})`.
        unit: Unit of the costs.
        columns: Panels per row.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    count, across = -(-len(panels) // columns), min(columns, len(panels))
    figure, axes = pyplot.subplots(
        count, across, squeeze=False, figsize=(4 * across + 4, 3.6 * count)
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (title, (label, curves)) in zip(axes.flat, panels.items(), strict=False):
        for curve, points in curves.items():
            sizes, costs = zip(*points, strict=True)
            slope = formatting.exponent(sizes, costs)
            axis.loglog(sizes, costs, "o-", label=f"{curve} ({slope:+.2f})".strip())
            lines += [(title, curve, size, f"{cost:.6g}") for size, cost in points]
        sizes = sorted({size for points in curves.values() for size, _ in points})
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=40, fontsize=8)
        axis.xaxis.set_minor_locator(ticker.NullLocator())
        axis.set_title(title, fontsize=10)
        axis.set_xlabel(label)
        axis.set_ylabel(unit)
        axis.grid(alpha=0.3, which="both")
        axis.legend(fontsize=8)
    figure.tight_layout()
    temporary = folder / f".{name}.png"
    figure.savefig(temporary, dpi=90)
    os.replace(temporary, folder / f"{name}.png")
    temporary = folder / f".{name}.csv"
    with open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["panel", "curve", "size", unit])
        writer.writerows(lines)
    os.replace(temporary, folder / f"{name}.csv")
