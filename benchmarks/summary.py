"""Tables of rates with a row per comparison with another system.

The page "Performance" has all rows, and README those in `SHORT`.
"""

import csv

from formatting import RESULTS, number, table

OURS, EXPORT = "keras_transformer", "keras_transformer SavedModel"
CPU = "two CPU cores"
# Task, name of the results, batch size or `None`, this package's system, the other
# system, and the name of the other system.
COMPARISONS = (
    (
        f"train `base`, {CPU}, tokens/s",
        *("training_base", None, OURS),
        *("torch.nn.Transformer", "`torch.nn.Transformer`, eager"),
    ),
    (
        f"train `tiny`, {CPU}, tokens/s",
        *("training_tiny", None, OURS),
        *("KerasHub layers", "KerasHub's layers, without XLA"),
    ),
    (
        f"decode `base`, {CPU}, batch 32, tokens/s",
        *("decoding_fixed", 32, f"{EXPORT}, in parts"),
        *("KerasHub layers, XLA", "KerasHub's layers, XLA"),
    ),
    (
        f"translate with `base`, {CPU}, `--patience 1`, batch 32, sentences/s",
        *("decoding_real_base", 32, f"{EXPORT}, patience 1, in parts"),
        *("CTranslate2 float32, in parts", "CTranslate2, float32"),
    ),
    (
        f"translate with `base`, {CPU}, `--patience 1`, batch 32, sentences/s",
        *("decoding_real_base", 32, f"{EXPORT}, patience 1, in parts"),
        *("CTranslate2 int8, in parts", "CTranslate2, int8"),
    ),
    (
        f"translate with width 128, {CPU}, `--patience 1`, batch 1, sentences/s",
        *("decoding_real", 1, f"{EXPORT}, patience 1"),
        *("CTranslate2 float32", "CTranslate2, float32"),
    ),
)


# Numbers of the rows that README shows.
SHORT = (0, 2, 4, 5, 6)


def gpu_rates(name, column):
    """Yields the rates of a table of GPU results, row by row."""
    with open(RESULTS / f"{name}.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield float(row[column].replace(",", ""))


def tables_of(results):
    """Returns the tables `summary` and `summary_short` in Markdown, by name.

    Args:
        results: Mapping of names to the contents of the JSON files.
    """
    ours, torch, *_ = gpu_rates("gpu_training", "tokens/s")
    search, _ = gpu_rates("gpu_decoding", "bfloat16, tokens/s")
    # transformers is faster in float32, so it is compared in this type.
    _, generate = gpu_rates("gpu_decoding", "float32, tokens/s")
    rows = [
        (
            "train `base` with `fit`, H100, JAX, bfloat16, tokens/s",
            *(ours, "`torch.nn.Transformer`, compiled", torch),
        ),
        (
            "decode `base`, H100, JAX, bfloat16, batch 128, tokens/s",
            *(
                search,
                "`MarianMTModel.generate`, in float32, where it is faster",
                generate,
            ),
        ),
    ]
    for task, name, batch, own, other, other_name in COMPARISONS:
        found = [results[name]] if batch is None else results[name]["batches"]
        (found,) = (each for each in found if each.get("batch") == batch)
        rates = {
            each["name"]: (each.get("rate") or each["tokens_per_second"])["median"]
            for each in found["systems"]
        }
        rows.append((task, rates[own], other_name, rates[other]))
    cells = [
        [task, number(own), name, number(other), f"{own / other:.1f}x"]
        for task, own, name, other in rows
    ]
    head = ["task", "this package", "compared with", "its rate", "relative speed"]
    short = [cells[index] for index in SHORT]
    return {"summary": table(head, cells), "summary_short": table(head, short)}
