"""Reports of runs: training curves, scores over seeds, and the paper's Table 3.

This module does not import TensorFlow.
"""

import csv
import json
import math
import os
import pathlib
import statistics

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from keras_transformer.errors import RunError
from keras_transformer.files import replace_file, replace_text
from keras_transformer.saving.info import markdown_table
from keras_transformer.saving.names import REPORT, read_metrics
from keras_transformer.untrusted import read_json

# File in the folder of a run that `repeat` or `ablate` has scored.
RESULT = "result.json"
SUFFIXES = (".png", ".pdf", ".svg")
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
# Number of decimals of each score of a seed.
_SCORES = {
    "validation_bleu": 2,
    "validation_perplexity": 3,
    "bleu": 2,
    "chrf": 2,
    "perplexity": 3,
}
# Titles of the columns of the table of seeds.
_TITLES = {
    "seed": "seed",
    "validation_bleu": "validation BLEU",
    "validation_perplexity": "validation perplexity",
    "bleu": "test BLEU",
    "bleu_interval": "95% interval",
    "chrf": "test chrF",
    "perplexity": "test perplexity",
    "minutes": "minutes",
}
_MISSING = "-"


# Results of the rows of Table 3 on newstest2013: perplexity per subword, BLEU, and
# millions of parameters, `None` if the table does not list them.
PAPER = {
    "base": (4.92, 25.8, 65),
    "A1": (5.29, 24.9, None),
    "A2": (5.00, 25.5, None),
    "A3": (4.91, 25.8, None),
    "A4": (5.01, 25.4, None),
    "B1": (5.16, 25.1, 58),
    "B2": (5.01, 25.4, 60),
    "C1": (6.11, 23.7, 36),
    "C2": (5.19, 25.3, 50),
    "C3": (4.88, 25.5, 80),
    "C4": (5.75, 24.5, 28),
    "C5": (4.66, 26.0, 168),
    "C6": (5.12, 25.4, 53),
    "C7": (4.75, 26.2, 90),
    "D1": (5.77, 24.6, None),
    "D2": (4.95, 25.5, None),
    "D3": (4.67, 25.3, None),
    "D4": (5.47, 25.7, None),
    "E": (4.92, 25.7, None),
    "big": (4.33, 26.4, 213),
}


def _axes(width, height, *shape, **options):
    """Returns a figure and its grid of axes, `[rows, columns]`."""
    # Pyplot would use the user's backend, which may need a display.
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(*shape, squeeze=False, **options)
    for axis in axes.flat:
        axis.grid(color="0.88", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    return figure, axes


def _save(figure, path):
    with replace_file(path) as temporary:
        figure.savefig(temporary, dpi=150)


def write_result(folder, result):
    """Writes the scores of a run, a mapping, to the file `RESULT`."""
    replace_text(folder / RESULT, json.dumps(result, indent=1))


def read_result(folder, schema):
    """Returns a run's scores, which match a schema, or `None` before it is scored."""
    path = folder / RESULT
    if not path.is_file():
        return None
    return read_json(path, schema, error=RunError).model_dump()


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
    rows_of_runs = [read_metrics(folder) for folder in folders]
    runs = [_curves(rows) for rows in rows_of_runs]
    for folder, run in zip(folders, runs, strict=True):
        if not run:
            raise RunError(
                f"{folder}: metrics.jsonl contains no metrics to plot. Training logs "
                "them every 100 steps, and at each validation"
            )
    panels = [panel for panel in _PANELS if any(panel[1:3] in run for run in runs)]
    labels = [label.replace("$", r"\$") for label in _short_names(folders)]
    legend_rows = math.ceil(len(runs) / _LEGEND_COLUMNS)
    height = 1.9 * len(panels) + 0.4 + 0.2 * legend_rows
    figure, axes = _axes(7.5, height, len(panels), 2, sharex="col", sharey="row")
    for row, (title, split, key, is_logarithmic) in zip(axes, panels, strict=True):
        row[0].set_ylabel(title, fontsize=9)
        for column, axis in enumerate(row):
            for number, run in enumerate(runs):
                if (split, key) in run:
                    *x, values = run[split, key]
                    has_marker = len(values) <= _MAX_MARKED
                    axis.plot(x[column], values, **_style(number, has_marker))
            if is_logarithmic:
                axis.set_yscale("log")
                axis.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
                axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.4g}")
                axis.yaxis.set_minor_locator(NullLocator())
    _mark_stages(axes, rows_of_runs)
    for axis, label in zip(axes[-1], ("steps", "minutes of training"), strict=True):
        axis.set_xlabel(label, fontsize=9)
        axis.locator_params(axis="x", nbins=5)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    figure.align_ylabels()
    if len(runs) > 1:
        figure.legend(
            handles=[Line2D([], [], **_style(number)) for number in range(len(runs))],
            labels=labels,
            loc="outside lower center",
            ncols=min(len(runs), _LEGEND_COLUMNS),
            fontsize=8,
            frameon=False,
        )
    else:
        figure.suptitle(labels[0], fontsize=9)
    _save(figure, path)


def _mark_stages(axes, rows_of_runs):
    """Draws a line where a stage begins, with its number if there is only one run."""
    has_one_run = len(rows_of_runs) == 1
    for number, rows in enumerate(rows_of_runs):
        color = "0.4" if has_one_run else _style(number)["color"]
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


def _curves(rows):
    """Returns a dict from (split, key) to the lists of steps, minutes and values."""
    curves = {}
    for _, split, key, _ in _PANELS:
        points = [
            (row["step"], row["seconds"] / 60, row[key])
            for row in rows
            # metrics.jsonl has null in place of numbers that are not finite.
            if row["split"] == split and None not in (row.get(key), row.get("seconds"))
        ]
        if points:
            curves[split, key] = list(zip(*points, strict=True))
    return curves


def _style(number, has_marker=True):
    """Returns the style of the curve of the run with this number, from 0."""
    style = {
        "color": _COLORS[number % len(_COLORS)],
        "linestyle": _DASHES[number % len(_DASHES)],
        "linewidth": 1.3,
    }
    if has_marker:
        style |= {"marker": _MARKERS[number % len(_MARKERS)], "markersize": 3}
    return style


def _short_names(folders):
    """Returns the shortest ends of the paths that distinguish the runs."""
    paths = [pathlib.Path(os.path.abspath(folder)).parts for folder in folders]
    for count in range(1, max(map(len, paths)) + 1):
        names = ["/".join(parts[-count:]) for parts in paths]
        if len(set(names)) == len(names):
            break
    return names


def write_seeds(results, output):
    """Writes `results.json`, `results.md` and `results.png` of `repeat`.

    If a seed lacks a score, there is neither a mean nor a deviation of it.

    Args:
        results: Non-empty list of results of `repeat`.
        output: Path of the folder.
    """
    # Imports the model.
    from keras_transformer.evaluation import summarize_seeds

    summaries = {}
    for name in _SCORES:
        scores = [each[name] for each in results]
        if None not in scores:
            summaries[name] = summarize_seeds(scores)
    means = {name: each._asdict() for name, each in summaries.items()}
    replace_text(output / REPORT, json.dumps({"seeds": results, **means}, indent=1))
    signatures = "".join(f"- `{each}`\n" for each in results[0]["signatures"])
    replace_text(
        output / "results.md",
        f"{_seeds_table(results, summaries)}\n± is the standard deviation over seeds. "
        "Intervals are from 1,000 bootstrap resamples of the test sentences. A dash "
        "marks a score that was not computed, or is not finite."
        f"\n\n{signatures}{_describe_omitted(results, output)}",
    )
    figure, ((axis,),) = _axes(1.5 + 0.8 * len(results), 3.6, 1, 1)
    places, bleu = range(len(results)), summaries["bleu"]
    lows, highs = zip(*(each["bleu_interval"] for each in results), strict=True)
    axis.vlines(places, lows, highs, color="C0", lw=1.5, label="95% interval")
    axis.plot(places, [each["bleu"] for each in results], "o", color="C0", label="seed")
    axis.axhline(bleu.mean, color="C1", label=f"mean {bleu}")
    if bleu.deviation is not None:
        low, high = bleu.mean - bleu.deviation, bleu.mean + bleu.deviation
        axis.axhspan(low, high, color="C1", alpha=0.15, lw=0)
    axis.set_xticks(places, [str(each["seed"]) for each in results])
    axis.set_xlim(-0.6, len(results) - 0.4)
    axis.set(xlabel="seed", ylabel="BLEU on the test set")
    figure.legend(loc="outside lower center", frameon=False, fontsize="small")
    _save(figure, output / "results.png")


def _seeds_table(results, summaries):
    def shown(name, score):
        return _MISSING if score is None else f"{score:.{_SCORES[name]}f}"

    rows = [
        {
            "seed": each["seed"],
            "bleu_interval": "{:.2f} to {:.2f}".format(*each["bleu_interval"]),
            "minutes": f"{each['seconds'] / 60:.0f}",
            **{name: shown(name, each[name]) for name in _SCORES},
        }
        for each in results
    ]
    if len(results) > 1:
        means = dict.fromkeys(_SCORES, _MISSING)
        for name, (mean, deviation) in summaries.items():
            means[name] = f"{shown(name, mean)} ± {shown(name, deviation)}"
        rows.append({"seed": "mean", **means})
    lines = [[row.get(name, "") for name in _TITLES] for row in rows]
    return markdown_table(_TITLES.values(), lines, align="---:")


def _describe_omitted(results, output):
    """Returns a line with the finished seeds that the report omits, or no text."""
    paths = output.glob(f"seed-*/{RESULT}")
    seeds = (path.parent.name.removeprefix("seed-") for path in paths)
    finished = {int(seed) for seed in seeds if seed.isdecimal()}
    omitted = sorted(finished - {each["seed"] for each in results})
    if not omitted:
        return ""
    return (
        f"\nFinished seeds that this report omits: {', '.join(map(str, omitted))}. Add "
        "them to --seeds to include them.\n"
    )


def write_table3(results, output, scale=1):
    """Writes `table.md`, `table.csv` and `table.png` of `ablate`.

    Args:
        results: Non-empty list of results of `ablate`. Results of the same row, with
            different seeds, are averaged.
        output: Path of an existing folder.
        scale: Number that all widths were divided by, for the note below the table.
    """
    by_row = {}
    for row in PAPER:
        if found := [result for result in results if result["row"] == row]:
            by_row[row] = found
    rows = [_cells(*item) for item in by_row.items()]
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    with (
        replace_file(output / "table.csv") as temporary,
        open(temporary, "w", newline="", encoding="utf-8") as file,
    ):
        csv.writer(file, lineterminator="\n").writerows(lines)
    counts = sorted(map(len, by_row.values()))
    runs = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    replace_text(
        output / "table.md",
        f"{markdown_table(lines[0], lines[1:])}\nAll widths are divided by {scale}. "
        f"Each row is the mean of {runs} run(s). PPL, per subword, and BLEU are "
        "computed with the last checkpoint, BLEU with beam size 4 and length penalty "
        f"0.6. sacreBLEU signature: `{results[0]['signature']}`. The paper's columns "
        "are its results on newstest2013 at full size.\n",
    )
    _plot_table3(rows, output / "table.png")


def _cells(row, results):
    """Returns a row's cells, a dict with the column headings as keys."""
    model = results[0]["recipe"]["model"]
    training = results[0]["recipe"]["training"]
    paper_perplexity, paper_bleu, millions = PAPER[row]
    perplexities = [result["perplexity"] for result in results]
    perplexity = ""
    if None not in perplexities:
        perplexity = round(statistics.mean(perplexities), 3)
    return {
        "row": row,
        "N": model["num_layers"],
        "d_model": model["d_model"],
        "d_ff": model["d_ff"],
        "h": model["num_heads"],
        "d_k": model["key_dim"],
        "d_v": model["value_dim"],
        "dropout": model["dropout"],
        "smoothing": training["label_smoothing"],
        "positions": model["positions"],
        "steps": training["steps"],
        "parameters": results[0]["parameters"],
        "PPL": perplexity,
        "BLEU": round(statistics.mean(result["bleu"] for result in results), 2),
        "paper's PPL": paper_perplexity,
        "paper's BLEU": paper_bleu,
        "paper's parameters (M)": "" if millions is None else millions,
    }


def _plot_table3(rows, path):
    """Plots each row's difference from the row `base`, here and in the paper.

    Without a row `base`, plots the values themselves.
    """
    figure, axes = _axes(10, 6, 2, 1, sharex=True)
    names = [row["row"] for row in rows]
    for axis, name in zip(axes.flat, ("BLEU", "PPL"), strict=True):
        for column, style, legend in (
            (name, "o", "here"),
            (f"paper's {name}", "x", "paper"),
        ):
            # An empty cell is not plotted.
            values = [math.nan if row[column] == "" else row[column] for row in rows]
            zero = values[names.index("base")] if "base" in names else 0.0
            axis.plot(names, [value - zero for value in values], style, label=legend)
        axis.axhline(0, color="grey", linewidth=0.8)
        axis.set_ylabel(f"{name} - base" if "base" in names else name)
        axis.legend()
    _save(figure, path)
