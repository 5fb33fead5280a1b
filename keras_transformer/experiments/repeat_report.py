"""Report of a recipe's scores over seeds: JSON, a table and a plot."""

import json

from matplotlib.figure import Figure

from keras_transformer.evaluation import spread
from keras_transformer.files import replace_file

REPORT = "results.json"
_SCORES = ("bleu", "chrf", "perplexity")


def write_report(results, output):
    """Writes `results.json`, `results.md` and `results.png` into `output`.

    Args:
        results: Non-empty list of results of `repeat`.
        output: Path of the folder.
    """
    spreads = {name: spread([each[name] for each in results]) for name in _SCORES}
    report = {
        "seeds": results,
        **{name: each._asdict() for name, each in spreads.items()},
    }
    with replace_file(output / REPORT) as temporary:
        temporary.write_text(json.dumps(report, indent=1), encoding="utf-8")
    with replace_file(output / "results.md") as temporary:
        temporary.write_text(_markdown(results, spreads), encoding="utf-8")
    with replace_file(output / "results.png") as temporary:
        _plot(results, spreads["bleu"], temporary)


def _markdown(results, spreads):
    head = ["seed", "BLEU", "95% interval", "chrF", "perplexity", "minutes"]
    rows = [
        [
            str(each["seed"]),
            f"{each['bleu']:.2f}",
            "{:.2f} to {:.2f}".format(*each["bleu_interval"]),
            f"{each['chrf']:.2f}",
            f"{each['perplexity']:.3f}",
            f"{each['seconds'] / 60:.0f}",
        ]
        for each in results
    ]
    bleu, chrf, perplexity = spreads.values()
    if len(results) > 1:
        perplexity_text = f"{perplexity.mean:.3f} ± {perplexity.deviation:.3f}"
        rows.append(["mean", str(bleu), "", str(chrf), perplexity_text, ""])
    lines = [head, ["---:"] * len(head), *rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    signatures = "".join(f"- `{each}`\n" for each in results[0]["signatures"])
    return (
        f"{table}\n± is the standard deviation over seeds. Intervals are from 1,000 "
        f"bootstrap resamples of the test sentences.\n\n{signatures}"
    )


def _plot(results, bleu, path):
    figure = Figure(figsize=(1.5 + 0.8 * len(results), 3.6), layout="constrained")
    axes = figure.subplots()
    places = range(len(results))
    lows, highs = zip(*(each["bleu_interval"] for each in results), strict=True)
    axes.vlines(places, lows, highs, color="C0", lw=1.5, label="95% interval")
    axes.plot(places, [each["bleu"] for each in results], "o", color="C0", label="seed")
    axes.axhline(bleu.mean, color="C1", label=f"mean {bleu}")
    if bleu.deviation is not None:
        low, high = bleu.mean - bleu.deviation, bleu.mean + bleu.deviation
        axes.axhspan(low, high, color="C1", alpha=0.15, lw=0)
    axes.set_xticks(places, [str(each["seed"]) for each in results])
    axes.set_xlim(-0.6, len(results) - 0.4)
    axes.set(xlabel="seed", ylabel="BLEU on the test set")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", frameon=False, fontsize="small")
    figure.savefig(path, format="png", dpi=150)
