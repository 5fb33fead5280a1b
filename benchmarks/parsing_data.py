"""Plots bracketing F1 of models against the number of their training trees.

    keras-transformer evaluate RUN --metric f1 --reference TREES --json > RUN.json
    python benchmarks/parsing_data.py --point RUN RUN.json --point OTHER OTHER.json

The script counts the trees of a run's recipe. F1 of greedy search comes from the run's
last validation, F1 of beam search from the output of `evaluate --json`. The script
writes benchmarks/results/parsing_data.png, .csv and .md.
"""

import argparse
import json
import pathlib

import curve
import formatting
from matplotlib import pyplot

from keras_transformer.files import replace_file

HEAD = ("trees", "steps", "perplexity", "greedy F1", "beam F1", "beam F1, at most 40")


def point(run, scores):
    """Returns the metrics of a run in the order of `HEAD`.

    Args:
        run: Folder of the run.
        scores: Path of the output of `evaluate --json`.
    """
    from keras_transformer.parsing.bracketing import SHORT_LENGTH
    from keras_transformer.parsing.trees import read_trees
    from keras_transformer.recipes import load_recipe

    recipe = load_recipe(run / "config.yaml")
    trees = sum(1 for path in recipe.data.train.trees for _ in read_trees(path))
    _, step, greedy, perplexity = curve.validations(run, "f1")[-1]
    results = json.loads(scores.read_text(encoding="utf-8"))["results"]
    found = {each["max_words"]: each["f1"] for each in results}
    return trees, step, perplexity, greedy, found[None], found[SHORT_LENGTH]


def draw(points, path):
    figure, axes = pyplot.subplots(figsize=(5, 3.5), layout="constrained")
    counts = [each[0] for each in points]
    for column in (3, 4, 5):
        scores = [each[column] for each in points]
        axes.plot(counts, scores, "o-", label=HEAD[column])
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.minorticks_off()
    axes.set_xlabel("training trees")
    axes.set_ylabel("F1")
    axes.grid(alpha=0.3)
    axes.legend()
    with replace_file(path) as temporary:
        figure.savefig(temporary, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--point",
        nargs=2,
        action="append",
        required=True,
        type=pathlib.Path,
        metavar=("RUN", "SCORES"),
    )
    parser.add_argument("--output", type=pathlib.Path, default=formatting.RESULTS)
    arguments = parser.parse_args()
    points = sorted(point(*each) for each in arguments.point)
    arguments.output.mkdir(parents=True, exist_ok=True)
    output = arguments.output / "parsing_data"
    draw(points, output.with_suffix(".png"))
    formatting.write_rows(output.with_suffix(".csv"), [HEAD, *points])
    rows = [
        [f"{trees:,}", f"{steps:,}", f"{perplexity:.2f}", *map("{:.1f}".format, scores)]
        for trees, steps, perplexity, *scores in points
    ]
    table = formatting.table(HEAD, rows)
    formatting.write(output.with_suffix(".md"), table)
    print(table)


if __name__ == "__main__":
    main()
