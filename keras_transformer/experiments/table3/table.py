"""Tables and a plot that compare results with the paper."""

import csv
import math
import statistics

from matplotlib.figure import Figure

from keras_transformer.experiments.table3.rows import PAPER
from keras_transformer.files import replace_file


def write_tables(results, output, scale=1):
    """Writes `table.md`, `table.csv` and `table.png` into `output`.

    Args:
        results: Non-empty list of results from `ablate`. Results of the same row, with
            different seeds, are averaged.
        output: Path of an existing folder.
        scale: Number that all widths were divided by, for the note below the table.
    """
    by_row = _by_row(results)
    rows = [_cells(row, row_results) for row, row_results in by_row.items()]
    counts = sorted(map(len, by_row.values()))
    runs = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    markdown = _markdown(lines, results[0]["signature"], scale, runs)
    with (
        replace_file(output / "table.csv") as temporary,
        open(temporary, "w", newline="", encoding="utf-8") as file,
    ):
        csv.writer(file, lineterminator="\n").writerows(lines)
    with replace_file(output / "table.md") as temporary:
        temporary.write_text(markdown, encoding="utf-8")
    with replace_file(output / "table.png") as temporary:
        _plot(rows, temporary)


def _by_row(results):
    return {
        row: [result for result in results if result["row"] == row]
        for row in PAPER
        if any(result["row"] == row for result in results)
    }


def _cells(row, results):
    """Returns a row's cells, a dict with the column headings as keys."""
    model = results[0]["recipe"]["model"]
    training = results[0]["recipe"]["training"]
    paper = PAPER[row]
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
        "paper's PPL": paper.perplexity,
        "paper's BLEU": paper.bleu,
        "paper's parameters (M)": "" if paper.millions is None else paper.millions,
    }


def _markdown(lines, signature, scale, runs):
    head, *rows = lines
    lines = [head, ["---"] * len(head), *rows]
    text = "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
    about = (
        f"\nAll widths are divided by {scale}. Each row is the mean of {runs} run(s). "
        "PPL, per subword, and BLEU are computed with the last checkpoint, BLEU with "
        "beam size 4 and length penalty 0.6. "
        f"sacreBLEU signature: `{signature}`. The paper's columns are its results on "
        "newstest2013 at full size.\n"
    )
    return text + about


def _plot(rows, path):
    """Plots each row's difference from the row `base`, here and in the paper.

    Without a row `base`, plots the values themselves.
    """
    figure = Figure(figsize=(10, 6))  # pyplot would use the user's backend
    axes = figure.subplots(2, 1, sharex=True)
    names = [row["row"] for row in rows]
    base = next((row for row in rows if row["row"] == "base"), None)
    for axis, name, label in zip(
        axes, ("BLEU", "PPL"), ("BLEU", "perplexity"), strict=True
    ):
        for column, style, legend in (
            (name, "o", "here"),
            (f"paper's {name}", "x", "paper"),
        ):
            # An empty cell is not plotted.
            values = [math.nan if row[column] == "" else row[column] for row in rows]
            zero = values[rows.index(base)] if base else 0.0
            axis.plot(names, [value - zero for value in values], style, label=legend)
        axis.axhline(0, color="grey", linewidth=0.8)
        axis.set_ylabel(f"{label} - base" if base else label)
        axis.grid(alpha=0.3)
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
