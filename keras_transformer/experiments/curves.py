"""Plots of training curves from `metrics.jsonl`, without TensorFlow."""

import math
import os
import pathlib

from keras_transformer.errors import RunError
from keras_transformer.files import replace_file
from keras_transformer.saving.names import metrics_of_run

# For each panel: its title, the split and key in metrics.jsonl, and whether its axis is
# logarithmic. Panels without values are omitted.
_PANELS = (
    ("training loss", "train", "loss", False),
    ("validation perplexity", "validation", "perplexity", True),
    ("validation BLEU", "validation", "bleu", False),
    ("validation chrF", "validation", "chrf", False),
    ("validation F1", "validation", "f1", False),
    ("learning rate", "train", "learning_rate", False),
)
# Colors of Okabe and Ito (2008), which color-blind readers can distinguish. Dashes and
# markers distinguish the curves in black-and-white print.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# Curves with more values have no markers, which would hide the line.
_MAX_MARKED = 60
_LEGEND_COLUMNS = 3
SUFFIXES = (".png", ".pdf", ".svg")


def draw_curves(folders, path):
    """Draws the metrics of runs against training steps and against minutes.

    A dotted line marks the beginning of each training stage after the first. If there
    is only one run, the line is labeled with the stage's number.

    Args:
        folders: List of run folders. Unfinished runs are drawn up to their last metric.
        path: File to write. Its suffix, one of `SUFFIXES`, determines the format.

    Raises:
        RunError: If the metrics.jsonl of a folder contains nothing to plot.
        StorageError: If the disk is full.
    """
    # Imported here, since importing matplotlib takes half a second.
    from matplotlib.figure import Figure

    rows_of_runs = [metrics_of_run(folder) for folder in folders]
    runs = [
        _curves_of_run(folder, rows)
        for folder, rows in zip(folders, rows_of_runs, strict=True)
    ]
    panels = [panel for panel in _PANELS if any(panel[1:3] in run for run in runs)]
    labels = _short_names(folders)
    has_legend = len(runs) > 1
    legend_rows = math.ceil(len(runs) / _LEGEND_COLUMNS) if has_legend else 1
    height = 1.9 * len(panels) + 0.4 + 0.2 * legend_rows
    # Pyplot would use the user's backend, which may need a display.
    figure = Figure(figsize=(7.5, height), layout="constrained")
    axes = figure.subplots(len(panels), 2, squeeze=False, sharex="col", sharey="row")
    for row, (title, split, key, is_logarithmic) in zip(axes, panels, strict=True):
        for axis, x in zip(row, ("steps", "minutes"), strict=True):
            for number, run in enumerate(runs):
                if (split, key) in run:
                    curve = run[split, key]
                    axis.plot(curve[x], curve["values"], **_style(number, curve))
            axis.grid(color="0.88", linewidth=0.6)
            axis.set_axisbelow(True)
            axis.spines[["top", "right"]].set_visible(False)
            axis.tick_params(labelsize=8)
            if is_logarithmic:
                _set_log_scale(axis)
        row[0].set_ylabel(title, fontsize=9)
    _mark_stages(axes, rows_of_runs)
    axes[-1][0].set_xlabel("steps", fontsize=9)
    axes[-1][1].set_xlabel("minutes of training", fontsize=9)
    for axis in axes[-1]:
        axis.locator_params(axis="x", nbins=5)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    figure.align_ylabels()
    if has_legend:
        figure.legend(
            handles=[_legend_line(number) for number in range(len(runs))],
            labels=[_escape(label) for label in labels],
            loc="outside lower center",
            ncols=min(len(runs), _LEGEND_COLUMNS),
            fontsize=8,
            frameon=False,
        )
    else:
        figure.suptitle(_escape(labels[0]), fontsize=9)
    with replace_file(path) as temporary:
        figure.savefig(temporary, dpi=150)


def has_metrics(folder):
    """Returns whether the log of a run contains a metric that `draw_curves` draws."""
    return bool(_curves(metrics_of_run(folder)))


def _mark_stages(axes, rows_of_runs):
    """Draws a line where a stage begins, with its number if there is only one run."""
    has_one_run = len(rows_of_runs) == 1
    for number, rows in enumerate(rows_of_runs):
        color = "0.4" if has_one_run else _COLORS[number % len(_COLORS)]
        for row in rows:
            is_known = None not in (row.get("seconds"), row.get("stage"))
            if row["split"] != "stage" or row["step"] == 0 or not is_known:
                continue
            begin = row["step"], row["seconds"] / 60
            for column, x in zip(axes.T, begin, strict=True):
                for axis in column:
                    axis.axvline(x, color=color, linestyle=":", linewidth=0.9)
                if has_one_run:
                    column[0].annotate(
                        f"stage {row['stage']}",
                        (x, 1),
                        xycoords=("data", "axes fraction"),
                        xytext=(2, 1),
                        textcoords="offset points",
                        fontsize=7,
                        color=color,
                    )


def _curves_of_run(folder, rows):
    """Like `_curves`, but raises `RunError` if there is no curve."""
    curves = _curves(rows)
    if not curves:
        raise RunError(f"{folder}: metrics.jsonl contains no metrics to plot")
    return curves


def _curves(rows):
    """Returns a dict from (split, key) to curve.

    A curve is a dict with the keys `steps`, `minutes` and `values`.
    """
    curves = {}
    for _, split, key, _ in _PANELS:
        points = [
            (row["step"], row["seconds"] / 60, row[key])
            for row in rows
            # metrics.jsonl has null in place of numbers that are not finite.
            if row["split"] == split and None not in (row.get(key), row.get("seconds"))
        ]
        if points:
            names = ("steps", "minutes", "values")
            curves[split, key] = dict(
                zip(names, zip(*points, strict=True), strict=True)
            )
    return curves


def _style(number, curve):
    """Returns the line style of the run with this number, from 0."""
    style = _line(number)
    if len(curve["values"]) <= _MAX_MARKED:
        style |= {"marker": _MARKERS[number % len(_MARKERS)], "markersize": 3}
    return style


def _line(number):
    return {
        "color": _COLORS[number % len(_COLORS)],
        "linestyle": _DASHES[number % len(_DASHES)],
        "linewidth": 1.3,
    }


def _legend_line(number):
    from matplotlib.lines import Line2D

    marker = _MARKERS[number % len(_MARKERS)]
    return Line2D([], [], marker=marker, markersize=3, **_line(number))


def _set_log_scale(axis):
    """Makes the vertical axis logarithmic, with plain numbers."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.4g}")
    axis.yaxis.set_minor_locator(NullLocator())


def _short_names(folders):
    """Returns the shortest ends of the paths that distinguish the runs."""
    paths = [pathlib.Path(os.path.abspath(folder)).parts for folder in folders]
    longest = max(map(len, paths))
    for count in range(1, longest + 1):
        names = ["/".join(parts[-count:]) for parts in paths]
        if len(set(names)) == len(names):
            break
    return names


def _escape(text):
    # Matplotlib reads text between dollar signs as a formula.
    return text.replace("$", r"\$")
