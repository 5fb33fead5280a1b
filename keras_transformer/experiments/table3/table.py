"""Tables and a plot of the results next to those of the paper."""

import csv
import statistics

from matplotlib.figure import Figure

from keras_transformer.experiments.table3.rows import PAPER
from keras_transformer.files import replace_file

HEAD = (
    "row",
    "N",
    "d_model",
    "d_ff",
    "h",
    "d_k",
    "d_v",
    "dropout",
    "smoothing",
    "positions",
    "steps",
    "parameters",
    "PPL",
    "BLEU",
    "paper's PPL",
    "paper's BLEU",
    "paper's parameters (M)",
)


def write_tables(results, output, scale=1):
    """Writes `table.md`, `table.csv` and `table.png` into `output`.

    Args:
        results: Results per row and seed; the seeds of a row are averaged.
        output: Path of the folder.
        scale: Divisor of all widths.
    """
    by_row = _by_row(results)
    rows = [_line(row, of_row) for row, of_row in by_row.items()]
    counts = sorted(map(len, by_row.values()))
    runs = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    markdown = _markdown(rows, results[0]["signature"], scale, runs)
    with (
        replace_file(output / "table.csv") as temporary,
        open(temporary, "w", newline="", encoding="utf-8") as file,
    ):
        csv.writer(file, lineterminator="\n").writerows([HEAD, *rows])
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


def _line(row, results):
    model = results[0]["recipe"]["model"]
    training = results[0]["recipe"]["training"]
    paper = PAPER[row]
    return [
        row,
        model["num_layers"],
        model["d_model"],
        model["d_ff"],
        model["num_heads"],
        model["key_dim"],
        model["value_dim"],
        model["dropout"],
        training["label_smoothing"],
        model["positions"],
        training["steps"],
        results[0]["parameters"],
        round(statistics.mean(result["perplexity"] for result in results), 3),
        round(statistics.mean(result["bleu"] for result in results), 2),
        paper.perplexity,
        paper.bleu,
        "" if paper.millions is None else paper.millions,
    ]


def _markdown(rows, signature, scale, runs):
    lines = [HEAD, ["---"] * len(HEAD), *rows]
    text = "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
    about = (
        f"\nWidths divided by {scale}; mean of {runs} run(s) per row; last checkpoint, "
        f"beam 4, alpha 0.6; perplexity per subword; {signature}. The "
        "paper's columns are results on newstest2013 at full size.\n"
    )
    return text + about


def _plot(rows, path):
    """Plots the difference of each row from base, here and in the paper."""
    figure = Figure(figsize=(10, 6))  # pyplot would use the user's backend
    axes = figure.subplots(2, 1, sharex=True)
    names = [row[0] for row in rows]
    base = next((row for row in rows if row[0] == "base"), None)
    for axis, ours, papers, label in (
        (axes[0], HEAD.index("BLEU"), HEAD.index("paper's BLEU"), "BLEU"),
        (axes[1], HEAD.index("PPL"), HEAD.index("paper's PPL"), "perplexity"),
    ):
        for column, style, who in ((ours, "o", "here"), (papers, "x", "paper")):
            zero = base[column] if base else 0.0
            axis.plot(names, [row[column] - zero for row in rows], style, label=who)
        axis.axhline(0, color="grey", linewidth=0.8)
        axis.set_ylabel(f"{label} - base" if base else label)
        axis.grid(alpha=0.3)
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
