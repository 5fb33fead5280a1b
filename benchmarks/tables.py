"""Markdown tables of the results in benchmarks/results.

    python benchmarks/tables.py

The script formats every NAME.json again as NAME.md, without measuring anything. The
benchmarks call `tables.markdown` when they write their results. Each function in
`TABLES` formats the results of the benchmark with its name.
"""

import argparse
import json

import machine
import summary
from agreement_tables import (
    agreement,
    fine_tuning,
    huggingface_agreement,
    marian_agreement,
)
from csv_tables import ablation, as_stored, experiments, translation_short
from formatting import RESULTS, exponent, number, spread, table, upper_exponent, write

# Tables of scripts that set the number of threads.
WITH_THREADS = (
    *("training", "decoding", "scaling", "layer_types"),
    *("restricted_attention", "workers"),
)


def relative_speed(system):
    """Formats the rate of `system`, divided by the rate of the table's first system."""
    return f"{system['relative_rate']['median']:.2f}x"


def training(result):
    head = ["system", "target tokens/s (range)", "relative speed"]
    rows = [
        [
            each["name"],
            spread(each["tokens_per_second"]),
            relative_speed(each),
            f"{each['utilization']:.0%}",
            f"{each['peak_mib']:,.0f}",
        ]
        for each in result["systems"]
    ]
    return table([*head, "fraction of matmul rate", "peak MiB"], rows)


def decoding(result):
    batches = result["batches"]
    # The first system translates batches only in parts, and single sentences only
    # without parts, so both kinds of results go into one row.
    ours = batches[0]["systems"][0]["name"]
    found = {}
    for batch in batches:
        for each in batch["systems"]:
            name = each["name"]
            if name.startswith(ours):
                name = name.removesuffix(", in parts")
            found.setdefault(name, {})[batch["batch"]] = each
    sizes = [batch["batch"] for batch in batches]

    def cells(one, show):
        return [show(one[size]) if size in one else "" for size in sizes]

    head, rows = ["system"], []
    for size in sizes:
        head += [f"batch {size}", "relative speed"]
    for name, one in found.items():
        pairs = zip(
            cells(one, lambda each: number(each["rate"]["median"])),
            cells(one, relative_speed),
            strict=True,
        )
        rows.append([name, *(cell for pair in pairs for cell in pair)])
    text = f"{result['unit'].capitalize()}:\n\n" + table(head, rows)
    head = ["system", *(f"peak MiB, batch {size}" for size in sizes)]
    rows = [
        [name, *cells(one, lambda each: f"{each['peak_mib']:,.0f}")]
        for name, one in found.items()
    ]
    if "bleu" in batches[-1]["systems"][0]:
        head.append("BLEU")
        for row, one in zip(rows, found.values(), strict=True):
            row.append(f"{one[sizes[-1]]['bleu']:.2f}" if sizes[-1] in one else "")
    return f"{text}\n{table(head, rows)}"


def pipeline(result):
    rows = [
        ["target tokens per second", spread(result["rate"])],
        ["padding", f"{result['padding']:.1%}"],
    ]
    if "times_tiny_model" in result:
        rows.append(
            ["multiple of the tiny model's rate", f"{result['times_tiny_model']:.0f}"]
        )
    return table(["metric", "value"], rows)


def pipeline_millions(result):
    *encoding, (after, last) = result["memory"]
    pairs = int(encoding[-1][0].split()[0].replace(",", ""))
    rows = [
        ["pairs", f"{pairs:,}"],
        ["pairs encoded per second", f"{pairs / result['encoding_seconds']:,.0f}"],
        ["seconds to the first batch of an epoch", f"{result['first_batch']:.1f}"],
        ["target tokens per second", f"{result['rate']:,.0f}"],
        ["padding", f"{result['padding']:.1%}"],
        ["MiB before the first pair", encoding[0][1]],
        ["highest MiB while encoding", max(mib for _, mib in encoding)],
        [f"MiB after {after}", last],
    ]
    return table(["metric", "value"], rows)


def scaling(result):
    rows = []
    for title, curves in result["panels"].items():
        for curve, points in curves.items():
            sizes, costs = zip(*points, strict=True)
            rows.append(
                [
                    title,
                    curve,
                    f"{sizes[0]:,} to {sizes[-1]:,}",
                    f"{costs[0]:.3g} to {costs[-1]:.3g}",
                    f"{exponent(sizes, costs):+.2f}",
                ]
            )
    return table(["varied", "model", "sizes", "ms", "exponent"], rows)


def layer_types(result):
    # Three columns of Table 1, then the exponents of n and d in the complexity.
    described = {
        "self-attention": ("n^2 d", "1", "1", 2, 1),
        "restricted": ("r n d", "1", "n / r", 1, 1),
        "LSTM": ("n d^2", "n", "n", 1, 2),
        "GRU": ("n d^2", "n", "n", 1, 2),
        "convolution": ("k n d^2", "1", "log_k n", 1, 2),
        "separable convolution": ("k n d + n d^2", "1", "n / k", 1, 2),
        "dilated convolution": ("k n d^2", "1", "log_k n", 1, 2),
    }
    rows = []
    for kind, by_length in result["by_length"].items():
        by_width = result["by_width"][kind]
        *facts, of_n, of_d = described[kind.partition(",")[0]]
        rows.append(
            [
                *(kind, *facts),
                f"{upper_exponent(by_length):.2f} ({of_n})",
                f"{upper_exponent(by_width):.2f} ({of_d})",
                *(f"{points[-1][1]:,.1f}" for points in (by_length, by_width)),
            ]
        )
    head = ["layer", "complexity", "sequential operations", "longest path"]
    head += ["exponent of n (Table 1)", "exponent of d (Table 1)"]
    head += [f"ms, n = {by_length[-1][0]:,}", f"ms, d = {by_width[-1][0]:,}"]
    return table(head, rows)


def restricted_attention(result):
    curves = {
        f"{kind}, {unit}": (points, decimals)
        for key, unit, decimals in (("milliseconds", "ms", 1), ("mib", "added MiB", 0))
        for kind, points in result[key].items()
    }
    lengths = [length for length, _ in next(iter(curves.values()))[0]]
    rows = [
        [
            f"{length:,}",
            *(f"{points[place][1]:,.{d}f}" for points, d in curves.values()),
        ]
        for place, length in enumerate(lengths)
    ]
    exponents = [f"{upper_exponent(points):.2f}" for points, _ in curves.values()]
    return table(["length", *curves], [*rows, ["exponent", *exponents]])


def startup(result):
    rows = [[name, f"{value:.2f}"] for name, value in result["seconds"].items()]
    return table(["stage", "seconds"], rows)


def serving_load(result):
    rows = []
    for name, found in result["phases"].items():
        statuses = sorted(found["statuses"].items())
        answered, refused = found["answered_ms"], found["refused_ms"]
        latencies = ("p50", "p95", "p99")
        rows.append(
            [
                name,
                f"{found['requests']:,} in {found['seconds']:.0f} s",
                ", ".join(f"{status}: {count:,}" for status, count in statuses),
                *(f"{answered[each]:,.0f}" if answered else "" for each in latencies),
                f"{refused['p99']:,.0f}" if refused else "",
                *(f"{each:,.0f}" for each in found["rss_mib"]),
            ]
        )
    head = ["load", "requests", "requests by status"]
    head += ["p50 of 200, ms", "p95 of 200, ms", "p99 of 200, ms", "p99 of 503, ms"]
    text = table([*head, "MiB before", "MiB after"], rows)
    after = result["phases"]["overload"]["after"]
    return (
        f"{text}\nOne request after the overload: status {after['status']} in "
        f"{after['ms']:.0f} ms.\n"
    )


def workers(result):
    kinds = {"one": "one", "half": "half a batch", "sum": "all-reduce", "two": "two"}
    head = ["model", "target tokens per batch", "gradient, MiB"]
    head += [f"{name}, ms" for name in kinds.values()]
    rows = [
        [
            row["model"],
            f"{row['tokens']:,}",
            f"{row['mib']:.1f}",
            *(f"{row['ms'][kind]:.0f}" for kind in kinds),
            *(
                "{median:.2f}x ({lowest:.2f} to {highest:.2f})".format(**row[name])
                for name in ("speedup", "predicted")
            ),
        ]
        for row in result["rows"]
    ]
    return table([*head, "speedup", "predicted speedup"], rows)


def attention_examples(result):
    relations = {
        "worn": "a garment to its wearer",
        "distance": "a verb to its subject, two phrases earlier",
        "it": "`it` to the thing thrown",
        "its": "`its` to its owner",
    }
    rows = [
        [
            relations[relation] if model == "trained" else "*before training*",
            f"{row['layer']}, {row['head']}",
            *(f"{row[name]:.0%}" for name in ("attention", "others")),
            f"{row['most']:.0%} of {row['sentences']}",
            f"{row['all_heads']:.0%}",
        ]
        for relation in relations
        for model, row in result[relation].items()
    ]
    head = ["relation", "layer, head", "attention", "to other nouns"]
    return table([*head, "strongest noun", "mean of all heads"], rows)


def parsing_baselines(result):
    head = ["parser", "sentences", "F1", "recall", "precision", "complete match"]
    keys = ("f1", "recall", "precision", "complete_match")
    rows = []
    for row in result["rows"]:
        for kind, which in (("all", ""), ("short", " of at most 40 words")):
            score = row[kind]
            # All sentences of the sample are short, so a second row would be the same.
            if kind == "all" or row["sentences"] == "all":
                first = {"all": "all ", "sample": "sample of "}[row["sentences"]]
                name = f"{'' if which else first}{score['sentences']:,}{which}"
                cells = [f"{score[key]:.2f}" for key in keys]
                rows.append([row["parser"], name, *cells])
    return table(head, rows)


def numerics_runs(result):
    head = ["run", "entry", "seconds", "seconds without", "speedup"]
    rows = [
        [
            row["run"],
            row["entry"],
            f"{row['seconds']['median']:.3f}",
            f"{row['seconds_without']['median']:.3f}",
            f"{row['speedup']['median']:.2f}x",
        ]
        for row in result["rows"]
    ]
    return table(head, rows)


# Tables of .csv files: name, name of the file, function.
CSV_TABLES = {
    "ablation": ("ablation", ablation),
    "experiments": ("experiments", experiments),
    "gpu_training": ("gpu_training", as_stored),
    "gpu_decoding": ("gpu_decoding", as_stored),
    "expectations": ("expectations", as_stored),
    "translation": ("translation", as_stored),
    "translation_short": ("translation", translation_short),
}
TABLES = {
    function.__name__: function
    for function in (
        *(training, decoding, pipeline, pipeline_millions, scaling),
        *(layer_types, restricted_attention, startup, serving_load, workers),
        *(agreement, attention_examples, parsing_baselines),
        *(marian_agreement, huggingface_agreement, fine_tuning),
        numerics_runs,
    )
}


def kind_of(name):
    """Returns the longest name in `TABLES` with which the name of a result begins.

    Raises:
        ValueError: If there is none.
    """
    kinds = [kind for kind in TABLES if name.startswith(kind)]
    if not kinds:
        raise ValueError(f"name must begin with a name in TABLES. Received: {name}")
    return max(kinds, key=len)


def markdown(name, result):
    """Returns the table of a result and a line about the machine.

    Args:
        name: Name of the result files (see `kind_of`).
        result: The contents of the JSON file.
    """
    kind = kind_of(name)
    return (
        f"{TABLES[kind](result)}\n"
        f"{machine.summary(result['machine'], kind in WITH_THREADS)}, "
        f"TensorFlow {result['versions']['tensorflow']}.\n"
    )


def csv_tables():
    """Returns the tables of .csv files by name."""
    return {
        name: function(RESULTS / f"{stem}.csv")
        for name, (stem, function) in CSV_TABLES.items()
    }


def main():
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    results = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(RESULTS.glob("*.json"))
    }
    texts = {name: markdown(name, result) for name, result in results.items()}
    texts |= summary.tables_of(results)
    texts |= csv_tables()
    for name, text in texts.items():
        write(RESULTS / f"{name}.md", text)


if __name__ == "__main__":
    main()
