"""Model card: `MODEL_CARD.md`, which describes an exported model."""

import dataclasses
import importlib.metadata
import pathlib

from keras_transformer.decoding.batches import select_target
from keras_transformer.recipes.schema import MODEL_ARGUMENTS
from keras_transformer.saving import names
from keras_transformer.saving.info import (
    METRICS,
    ModelInfo,
    Score,
    Training,
    flatten_setting,
    flatten_text,
    markdown_table,
    read_summary,
)

_UNKNOWN = "not stated"


def model_card(model, tokenizer, search, recipe=None, **facts):
    """Returns a model card in Markdown.

    Args:
        model: `Transformer`.
        tokenizer: Source tokenizer. Its attribute `target` is the target tokenizer.
        search: Mapping of the export's search settings.
        recipe: The run's `Recipe`. If `None`, the card has no sections about data and
            training.
        **facts: Further facts: `scores`, a list of mappings with `name`, `score` and
            `signature`, as `keras-transformer evaluate --json` prints them; `license`,
            a str; and `validation`, as `run_metadata` returns it.

    Examples:
        >>> opened = kt.open_model("phrases")
        >>> card = kt.export.model_card(
        ...     opened.model, opened.tokenizer, {"beam_size": 4}, license="MIT"
        ... )
        >>> [line for line in card.splitlines() if line.startswith("#")]
        ['# Model card', '## Model', '## Search', '## Scores', '## License']
    """
    return describe_model(model, tokenizer, search, recipe, **facts)[names.CARD]


def describe_translator(translator, scores=(), license=None, export=None):
    """Returns the files that describe an opened model, as names and texts.

    If `license` is `None`, it is that of the opened model, if known. The other
    arguments are those of `describe_model`.
    """
    path = translator.path
    stored = read_summary(path if path.is_dir() else path.parent)
    settings = dataclasses.asdict(translator.search)
    settings["max_source_length"] = translator.max_source_length
    return describe_model(
        *(translator.model, translator.tokenizer, settings),
        **run_metadata(path),
        scores=scores,
        license=license or stored.license,
        export=export,
        origin=stored.origin,
    )


def describe_model(
    model,
    tokenizer,
    search,
    recipe=None,
    validation=None,
    scores=(),
    license=None,
    export=None,
    origin=None,
):
    """Returns the model card and `summary.json`, by their names.

    Args:
        model: `Transformer`.
        tokenizer: Source tokenizer. Its attribute `target` is the target tokenizer.
        search: Mapping of the export's search settings.
        recipe: The run's `Recipe`. If it is `None` or an imported model's, the card has
            no sections about data and training.
        validation: A validation of the run, a row of its `metrics.jsonl` with `split`,
            `step` and any of `perplexity`, `bleu`, `chrf`, and `f1`. A value is `None`
            if it was not finite.
        scores: List of mappings with `name`, `score` and `signature`, from
            `keras-transformer evaluate --json`.
        license: License of the model.
        export: Mapping of the arguments `tokenizer_ops`, `parallel_parts` and
            `jit_compile` of `export_translator`. If `None`, the card has no section
            about the export.
        origin: Mapping of names to values that describe where an imported model comes
            from. If `None`, the card has no section about the import.
    """
    # The recipe of an imported model has no data, and defaults for the training.
    is_trained = recipe is not None and recipe.data.kind != "none"
    sections = {
        "Model": dict(_model_rows(model, tokenizer)),
        "Search": {
            name: each for name, each in sorted(search.items()) if each is not None
        },
        "Export": dict(_export_rows(**export)) if export else {},
        "Import": origin or {},
        "Data": dict(_data_rows(recipe)) if is_trained else {},
        "Training": dict(_training_rows(recipe)) if is_trained else {},
    }
    measured = _score_rows(validation, scores, recipe)
    info = ModelInfo(
        parameters=model.count_params(),
        written=sections["Model"]["written with"],
        decoding=sections["Search"],
        export=sections["Export"],
        scores=[Score(name=name, score=each, how=how) for name, each, how in measured],
        license=license,
        origin=sections["Import"],
        data=sections["Data"],
        training=Training(settings=sections["Training"]),
    )
    info.describe_model(model.get_config())
    info.vocabulary.kind = tokenizer.kind
    if getattr(tokenizer, "text", None) is not None:
        info.text = flatten_text(tokenizer.text.model_dump())
    parts = [_table(title, rows.items()) for title, rows in sections.items() if rows]
    rows = [(name, f"{score:.2f}", how) for name, score, how in measured]
    head = ("metric", "score", "measurement")
    parts.append(_table("Scores", rows, head) if rows else f"## Scores\n\n{_UNKNOWN}\n")
    parts.append(f"## License\n\n{license or _UNKNOWN}\n")
    card = "\n".join(["# Model card\n", *parts])
    return {names.CARD: card, names.SUMMARY: info.summary()}


def run_metadata(path):
    """Reads a run's recipe and validation scores, the arguments for `model_card`.

    The validation is that of the final model or, if there is none, the last one. For
    `best.keras`, it is the best one. Other `.keras` files have none.

    Args:
        path: Path of the run, or of a `.keras` file in it.

    Returns:
        Dict with `recipe`, a `Recipe`, and `validation`, a dict of scores. What the
        folder lacks is `None`.

    Raises:
        RecipeError: If the recipe is invalid.

    Examples:
        >>> import os
        >>> os.makedirs("runs/mine")
        >>> recipe = kt.recipes.load_recipe("phrases", ["training.steps=1500"])
        >>> kt.recipes.dump_recipe(recipe, "runs/mine/config.yaml")
        >>> kt.export.run_metadata("runs/mine")["recipe"].training.steps
        1500
    """
    from keras_transformer.recipes import load_recipe

    path = pathlib.Path(path)
    folder = path if path.is_dir() else path.parent
    config = folder / names.CONFIG
    rows = []
    if path.name == names.BEST_MODEL:
        rows = [row for row in names.read_validations(folder) if row.get("is_best")]
    elif path.is_dir() or path.name == names.MODEL:
        final = names.read_final_scores(folder)
        rows = [final] if final else names.read_validations(folder)
    return {
        "recipe": load_recipe(config) if config.is_file() else None,
        "validation": rows[-1] if rows else None,
    }


def _model_rows(model, tokenizer):
    yield "architecture", "Transformer (Vaswani et al., 2017)"
    yield "parameters", f"{model.count_params():,}"
    settings = model.get_config()
    for name in MODEL_ARGUMENTS:
        if settings[name] is not None:
            yield name, settings[name]
    source, target = tokenizer, select_target(tokenizer)
    sizes = f"{target.vocabulary_size:,} subwords for source and target"
    if source is not target and source.pieces() != target.pieces():
        sizes = f"{source.vocabulary_size:,} source and "
        sizes += f"{target.vocabulary_size:,} target subwords"
    yield "tokenizer", f"{tokenizer.kind}, {sizes}"
    version = importlib.metadata.version
    packages = ("tensorflow", "tensorflow-text", "keras")
    yield "written with", ", ".join(f"{each} {version(each)}" for each in packages)


def _export_rows(tokenizer_ops, parallel_parts, jit_compile):
    yield "tokenizer operations", tokenizer_ops
    yield "parallel parts of a batch", parallel_parts
    yield "XLA", "single texts of up to 64 subwords" if jit_compile else "no"
    yield (
        "TF-Serving",
        "no, because its builds lack XLA" if jit_compile else "yes",
    )


def _data_rows(recipe):
    for key, value in recipe.data.model_dump().items():
        if isinstance(value, dict):
            sides = (
                f"{side} {_base_names(paths)}"
                for side, paths in value.items()
                if paths is not None
            )
            value = "; ".join(sides)
        elif isinstance(value, list) or pathlib.PurePath(str(value)).is_absolute():
            value = _base_names(value)
        if value is not None and key != "data_dir":
            yield key, value


def _base_names(paths):
    """Joins the names of files without their folders, which may be private."""
    paths = paths if isinstance(paths, list) else [paths]
    return ", ".join(pathlib.PurePath(str(path)).name for path in paths)


def _training_rows(recipe):
    for key, value in recipe.training.model_dump().items():
        if key == "initial_model" and value is not None:
            value = _base_names(value)
        if value is not None:
            yield key, flatten_setting(value)


def _score_rows(validation, scores, recipe):
    """Returns the name, value and measurement of all `scores` and of a validation."""
    rows = [(each["name"], each["score"], each["signature"]) for each in scores]
    if validation:
        is_final = validation.get("split") == names.FINAL
        which = "final model" if is_final else "single checkpoint"
        when = f"validation of the {which} at step {validation['step']}"
        beam = ""
        if recipe and is_final:
            search = recipe.decoding
            beam = f", beam {search.beam_size}, length penalty {search.length_penalty}"
        elif recipe:
            beam = f", beam {recipe.training.validation_beam_size}"
        if recipe and recipe.training.validation_sentences:
            beam += f", {recipe.training.validation_sentences} sentences"
        bleu = _bleu_signature(recipe) if recipe else ""
        hows = {
            **{"bleu": beam + bleu, "chrf": beam, "perplexity": ""},
            "f1": f"{beam}, labeled, COLLINS.prm",
        }
        for name, title in METRICS.items():
            if validation.get(name) is not None:
                # A score in `scores` may have the same title.
                title = f"{title}, validation"
                rows.append((title, validation[name], when + hows[name]))
    return rows


def _bleu_signature(recipe):
    version = importlib.metadata.version("sacrebleu")
    settings = recipe.evaluation
    case = "lc" if settings.lowercase else "mixed"
    return (
        f", nrefs:1|case:{case}|eff:no|tok:{settings.tokenize}|smooth:exp|"
        f"version:{version}"
    )


def _table(title, rows, head=("property", "value")):
    return f"## {title}\n\n{markdown_table(head, rows)}"
