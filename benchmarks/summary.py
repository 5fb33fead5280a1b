"""README's table of speeds: one row per task, one column per system."""

import json

import report

SYSTEMS = (
    "keras_transformer",
    "KerasHub",
    "PyTorch",
    "CTranslate2",
    "CTranslate2 int8",
)
TRAINED = ("keras_transformer", "KerasHub layers", "torch.nn.Transformer", None, None)


def _decoders(ours, in_parts):
    parts = ", in parts" if in_parts else ""
    theirs = (f"CTranslate2 float32{parts}", f"CTranslate2 int8{parts}")
    return (
        f"keras_transformer SavedModel{ours}{parts}",
        "KerasHub layers",
        None,
        *theirs,
    )


# Task, file in benchmarks/results, batch size, each system's name in the file.
ROWS = (
    ("train, tiny, tokens/s", "training_tiny", None, TRAINED),
    ("train, base, tokens/s", "training_base", None, TRAINED),
    ("decode, base, batch 1, tokens/s", "decoding_fixed", 1, _decoders("", False)),
    ("decode, base, batch 128, tokens/s", "decoding_fixed", 128, _decoders("", True)),
    (
        "translate, base, batch 32, sentences/s",
        "decoding_real_base",
        32,
        _decoders(", patience 1", True),
    ),
    (
        "translate, width 128, batch 1, sentences/s",
        "decoding_real",
        1,
        _decoders(", patience 1", False),
    ),
)


def table():
    """Returns the table, with the median of each system that was measured."""
    rows = []
    for task, name, batch, names in ROWS:
        path = report.RESULTS / f"{name}.json"
        result = json.loads(path.read_text(encoding="utf-8"))
        if batch is not None:
            (result,) = (part for part in result["batches"] if part["batch"] == batch)
        systems = {system["name"]: system for system in result["contestants"]}
        rates = (
            systems[name].get("rate") or systems[name]["tokens_per_second"]
            if name in systems
            else None
            for name in names
        )
        rows.append([task, *(_cell(rate) for rate in rates)])
    return report.table(["task", *SYSTEMS], rows)


def _cell(rate):
    if rate is None:
        return "–"
    return f"{rate['median']:,.{1 if rate['median'] < 100 else 0}f}"


if __name__ == "__main__":
    print(table())
