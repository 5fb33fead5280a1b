"""Plots validation BLEU or F1 and perplexity of runs against training time.

    python benchmarks/curve.py runs/multi30k --output benchmarks/results/multi30k

The script reads metrics.jsonl of each run and writes OUTPUT.png and OUTPUT.csv. To add
the curves of an earlier call, pass its .csv file like a run.
"""

import argparse
import csv
import json
import pathlib

import formatting
import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot, ticker

from keras_transformer.files import replace_file

SCORES = {"bleu": "BLEU", "f1": "F1"}


def validations(run, score):
    """Returns (minutes, step, score, perplexity) of each validation.

    Scores and perplexities that are missing or not finite are `None`.
    """
    rows = []
    with open(run / "metrics.jsonl", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if row["split"] == "validation":
                minutes = row["seconds"] / 60
                rows.append((minutes, row["step"], row.get(score), row["perplexity"]))
    if not rows:
        raise SystemExit(f"{run}/metrics.jsonl contains no validation")
    return rows


def read_curves(path, score):
    """Returns the rows of each curve in a .csv file, by the curve's name."""
    curves = {}
    with open(path, encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found = float(row["minutes"]), int(row["step"])
            for name in (score, "perplexity"):
                found += (float(row[name]) if row[name] else None,)
            curves.setdefault(row["run"], []).append(found)
    return curves


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "runs",
        nargs="+",
        type=pathlib.Path,
        help="run folders, or .csv files of this script",
    )
    parser.add_argument(
        "--names", nargs="+", help="one name per folder (default: folder names)"
    )
    parser.add_argument("--score", choices=SCORES, default="bleu")
    parser.add_argument("--output", required=True, help="path without suffix")
    arguments = parser.parse_args()
    folders = [run for run in arguments.runs if run.suffix != ".csv"]
    names = arguments.names or [run.name for run in folders]
    if len(names) != len(folders):
        parser.error(
            "--names requires one name per folder. "
            f"Received: {len(names)} names, {len(folders)} folders."
        )
    curves, remaining = {}, iter(names)
    for path in arguments.runs:
        if path.suffix == ".csv":
            found = read_curves(path, arguments.score)
        else:
            found = {next(remaining): validations(path, arguments.score)}
        if repeated := curves.keys() & found.keys():
            parser.error(
                "curves must have distinct names. Received twice: "
                f"{', '.join(sorted(repeated))}. Choose other --names."
            )
        curves |= found

    pathlib.Path(arguments.output).parent.mkdir(parents=True, exist_ok=True)
    lines = [["run", "minutes", "step", arguments.score, "perplexity"]]
    for name, rows in curves.items():
        for minutes, step, score, perplexity in rows:
            shown = "" if score is None else f"{score:.2f}"
            shown_perplexity = "" if perplexity is None else f"{perplexity:.3f}"
            lines.append([name, f"{minutes:.1f}", step, shown, shown_perplexity])
    formatting.write_rows(f"{arguments.output}.csv", lines)

    draw(curves, arguments.score, f"{arguments.output}.png")


def draw(curves, score, path):
    # Perplexities of different linearizations of trees are not comparable.
    count = 1 if score == "f1" else 2
    figure, (panels,) = pyplot.subplots(
        1, count, figsize=(5 * count, 3.8), squeeze=False
    )
    for name, rows in curves.items():
        for axes, column in zip(panels, (2, 3), strict=False):
            known = [row for row in rows if row[column] is not None]
            minutes, values = ([row[each] for row in known] for each in (0, column))
            axes.plot(minutes, values, marker=".", label=name)
    panels[0].set_ylabel(f"{SCORES[score]} (validation)")
    for axes in panels[1:]:
        axes.set_ylabel("perplexity per token (validation)")
        axes.set_yscale("log")
        subs = (1, 1.2, 1.5, 2, 3, 4, 5, 7)
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=subs))
        axes.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    for axes in panels:
        axes.set_xlabel("training time, minutes")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.tight_layout()
    with replace_file(path) as temporary:
        figure.savefig(temporary, dpi=120)


if __name__ == "__main__":
    main()
