"""README's table of rates: one row per task, one column per system."""

from formatting import number, table


def table_of(results):
    """Returns the table in Markdown.

    Args:
        results: Mapping of names to the contents of the JSON files.
    """
    trained = ("keras_transformer", "KerasHub layers", "torch.nn.Transformer", "", "")

    def decoders(options, parts):
        """Returns the systems of a row, given the suffixes of their names."""
        ours = f"keras_transformer SavedModel{options}{parts}"
        names = (ours, "KerasHub layers, XLA", "")
        return (*names, *(f"CTranslate2 {each}{parts}" for each in ("float32", "int8")))

    # Task, name of the results, batch size or `None`, and the system of each column, or
    # "" if none was measured.
    tasks = (
        ("train, tiny, tokens/s", "training_tiny", None, trained),
        ("train, base, tokens/s", "training_base", None, trained),
        ("decode, base, batch 1, tokens/s", "decoding_fixed", 1, decoders("", "")),
        (
            "decode, base, batch 128, tokens/s",
            "decoding_fixed",
            128,
            decoders("", ", in parts"),
        ),
        (
            "translate, base, batch 32, sentences/s",
            "decoding_real_base",
            32,
            decoders(", patience 1", ", in parts"),
        ),
        (
            "translate, d_model 128, batch 1, sentences/s",
            "decoding_real",
            1,
            decoders(", patience 1", ""),
        ),
    )
    rows = []
    for task, name, batch, names in tasks:
        found = [results[name]] if batch is None else results[name]["batches"]
        (found,) = (each for each in found if each.get("batch") == batch)
        rates = {
            each["name"]: each.get("rate") or each["tokens_per_second"]
            for each in found["systems"]
        }
        cells = (number(rates[n]["median"]) if n in rates else "–" for n in names)
        rows.append([task, *cells])
    head = ["task", "keras_transformer", "KerasHub", "PyTorch", "CTranslate2"]
    return table([*head, "CTranslate2 int8"], rows)
