"""Report of a recipe's scores over seeds: JSON, a table and a plot."""

import json

from matplotlib.figure import Figure

from keras_transformer.evaluation import spread
from keras_transformer.experiments.scoring import RESULT
from keras_transformer.files import replace_file
from keras_transformer.saving.names import REPORT

# Number of decimals of each score.
_SCORES = {
    "validation_bleu": 2,
    "validation_perplexity": 3,
    "bleu": 2,
    "chrf": 2,
    "perplexity": 3,
}
# Titles of the columns of the table.
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


def write_report(results, output):
    """Writes `results.json`, `results.md` and `results.png` into `output`.

    If a seed lacks a score, there is neither a mean nor a deviation of it.

    Args:
        results: Non-empty list of results of `repeat`.
        output: Path of the folder.
    """
    spreads = {}
    for name in _SCORES:
        scores = [each[name] for each in results]
        if None not in scores:
            spreads[name] = spread(scores)
    report = {
        "seeds": results,
        **{name: each._asdict() for name, each in spreads.items()},
    }
    with replace_file(output / REPORT) as temporary:
        temporary.write_text(json.dumps(report, indent=1), encoding="utf-8")
    with replace_file(output / "results.md") as temporary:
        text = _markdown(results, spreads) + _describe_omitted(results, output)
        temporary.write_text(text, encoding="utf-8")
    with replace_file(output / "results.png") as temporary:
        _plot(results, spreads["bleu"], temporary)


def _markdown(results, spreads):
    rows = [
        {
            "seed": str(each["seed"]),
            "bleu_interval": "{:.2f} to {:.2f}".format(*each["bleu_interval"]),
            "minutes": f"{each['seconds'] / 60:.0f}",
            **{name: _format(name, each[name]) for name in _SCORES},
        }
        for each in results
    ]
    if len(results) > 1:
        means = dict.fromkeys(_SCORES, _MISSING)
        for name, (mean, deviation) in spreads.items():
            means[name] = f"{_format(name, mean)} ± {_format(name, deviation)}"
        rows.append({"seed": "mean", **means})
    lines = [_TITLES.values(), ["---:"] * len(_TITLES)]
    lines += [[row.get(name, "") for name in _TITLES] for row in rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    signatures = "".join(f"- `{each}`\n" for each in results[0]["signatures"])
    return (
        f"{table}\n± is the standard deviation over seeds. Intervals are from 1,000 "
        "bootstrap resamples of the test sentences. A dash marks a score that was not "
        f"computed, or is not finite.\n\n{signatures}"
    )


def _describe_omitted(results, output):
    """Returns a line with the finished seeds that the report omits, or no text."""
    names = [each.parent.name for each in output.glob(f"seed-*/{RESULT}")]
    seeds = [name.removeprefix("seed-") for name in names]
    finished = {int(seed) for seed in seeds if seed.isdecimal()}
    omitted = sorted(finished - {each["seed"] for each in results})
    if not omitted:
        return ""
    return (
        f"\nFinished seeds that this report omits: {', '.join(map(str, omitted))}. Add "
        "them to --seeds to include them.\n"
    )


def _format(name, score):
    return _MISSING if score is None else f"{score:.{_SCORES[name]}f}"


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
