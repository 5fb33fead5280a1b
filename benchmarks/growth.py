"""Plots of cost (time or memory) against size, with fitted exponents."""

import pathlib

import formatting
import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot, ticker

from keras_transformer.files import replace_file


def write(folder, name, panels, unit, columns=4, upper_half=False):
    """Writes the points to NAME.csv and a grid of log-log plots to NAME.png.

    Args:
        folder: Folder of both files.
        name: Name of both files.
        panels: Mapping of panel titles to `(x-axis label, {curve: [(size, cost)]})`.
        unit: Unit of the costs, or a mapping of panel titles to units.
        columns: Panels per row.
        upper_half: Whether to fit the exponents to the larger half of the sizes, as the
            tables of some results do.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    units = unit if isinstance(unit, dict) else dict.fromkeys(panels, unit)
    lines = [["panel", "curve", "size", "cost", "unit"]]
    num_rows, num_columns = -(-len(panels) // columns), min(columns, len(panels))
    figure, axes = pyplot.subplots(
        num_rows,
        num_columns,
        squeeze=False,
        figsize=(4 * num_columns + 4, 3.6 * num_rows),
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (title, (label, curves)) in zip(axes.flat, panels.items(), strict=False):
        for curve, points in curves.items():
            sizes, costs = zip(*points, strict=True)
            slope = formatting.exponent(sizes, costs)
            if upper_half:
                slope = formatting.upper_exponent(points)
            axis.loglog(sizes, costs, "o-", label=f"{curve} ({slope:+.2f})".strip())
            for size, cost in points:
                lines.append([title, curve, size, f"{cost:.6g}", units[title]])
        sizes = sorted({size for points in curves.values() for size, _ in points})
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=40, fontsize=8)
        axis.xaxis.set_minor_locator(ticker.NullLocator())
        axis.set_title(title, fontsize=10)
        axis.set_xlabel(label)
        axis.set_ylabel(units[title])
        _set_plain_labels(
            axis.yaxis, [cost for each in curves.values() for _, cost in each]
        )
        axis.grid(alpha=0.3, which="both")
        axis.legend(fontsize=8)
    figure.tight_layout()
    with replace_file(folder / f"{name}.png") as temporary:
        figure.savefig(temporary, dpi=90)
    formatting.write_rows(folder / f"{name}.csv", lines)


def _set_plain_labels(axis, values):
    """Labels a logarithmic axis with plain numbers instead of powers of ten."""
    ratio = max(values) / min(values)

    def label(value, _):
        # Values within a factor of 4 leave room for all labels. Within a factor of 100,
        # 1, 2 and 5 times each power of ten are labeled, otherwise only the powers.
        is_labeled = ratio < 4 or (ratio < 100 and f"{value:e}"[0] in "125")
        is_power = f"{value:.3e}".startswith("1.000")
        return f"{value:,.4g}" if is_labeled or is_power else ""

    axis.set_major_formatter(label)
    axis.set_minor_formatter(label)
