"""Model card: `MODEL_CARD.md`, which describes an exported model."""

import dataclasses
import importlib.metadata
import pathlib

from keras_transformer.decoding.batches import target_of
from keras_transformer.recipes.schema import MODEL_ARGUMENTS
from keras_transformer.saving.card import CARD, SUMMARY, markdown_table
from keras_transformer.saving.info import (
    ModelInfo,
    Score,
    Training,
    flatten_setting,
    read_summary,
)
from keras_transformer.saving.names import (
    BEST_MODEL,
    CONFIG,
    FINAL,
    MODEL,
    final_scores_of_run,
    validations_of_run,
)

_UNKNOWN = "not stated"


def model_card(
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
    """Returns a model card in Markdown.

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
    parts = [
        "# Model card\n",
        _table("Model", _model_rows(model, tokenizer)),
        _table("Search", [row for row in sorted(search.items()) if row[1] is not None]),
    ]
    if export is not None:
        parts.append(_table("Export", _export_rows(**export)))
    if origin:
        parts.append(_table("Import", origin.items()))
    if recipe is not None and not _is_imported(recipe):
        parts.append(_table("Data", _data_rows(recipe)))
        parts.append(_table("Training", _training_rows(recipe)))
    rows = _score_rows(validation, scores, recipe)
    rows = [(name, f"{score:.2f}", how) for name, score, how in rows]
    head = ("metric", "score", "measurement")
    parts.append(_table("Scores", rows, head) if rows else f"## Scores\n\n{_UNKNOWN}\n")
    parts.append(f"## License\n\n{license or _UNKNOWN}\n")
    return "\n".join(parts)


def describe_translator(translator, scores=(), license=None, export=None):
    """Returns the texts that describe an opened model, by the names of their files.

    Args:
        translator: `Translator` from `open_model`.
        scores: List of mappings with `name`, `score` and `signature`.
        license: License of the model. If `None`, it is that of the opened model, if
            known.
        export: Mapping of arguments of `export_translator` (see `model_card`), or
            `None`.
    """
    path = translator.path
    stored = read_summary(path if path.is_dir() else path.parent)
    settings = dataclasses.asdict(translator.search)
    settings["max_source_length"] = translator.max_source_length
    facts = {
        **run_metadata(path),
        "scores": scores,
        "license": license or stored.license,
        "export": export,
        "origin": stored.origin,
    }
    model = translator.model, translator.tokenizer, settings
    card, summary = model_card(*model, **facts), _summary(*model, **facts).summary()
    return {CARD: card, SUMMARY: summary}


def _summary(
    model, tokenizer, search, recipe, validation, scores, license, export, origin
):
    """Returns the facts of a model card as a `ModelInfo`."""
    facts = dict(_model_rows(model, tokenizer))
    measured = _score_rows(validation, scores, recipe)
    info = ModelInfo(
        parameters=model.count_params(),
        written=facts["written with"],
        decoding={name: each for name, each in search.items() if each is not None},
        export=dict(_export_rows(**export)) if export else {},
        scores=[Score(name=name, score=each, how=how) for name, each, how in measured],
        license=license,
        origin=origin,
    )
    info.describe_model(model.get_config())
    info.vocabulary.kind = tokenizer.kind
    if recipe is not None and not _is_imported(recipe):
        info.data = dict(_data_rows(recipe))
        info.training = Training(settings=dict(_training_rows(recipe)))
    return info


def length_penalty_notes(search, library):
    """Returns a list with a note if a library's length penalty differs from `search`.

    If the length penalties are equal, the list is empty.

    Args:
        search: `BeamSearch`.
        library: Name of a library that divides log-probabilities by length^alpha.
    """
    kind, alpha = search.length_penalty_kind, search.length_penalty
    if kind == "power" or alpha == 0:
        return []
    return [
        f"{library} divides log-probabilities by length^{alpha:g}. keras_transformer "
        f"divides them by the length penalty {kind} with alpha {alpha:g}."
    ]


def _is_imported(recipe):
    return recipe.data.kind == "none"


def run_metadata(path):
    """Reads the recipe and a validation of a run, as arguments of `model_card`.

    The validation is that of the final model or, if there is none, the last one. For
    `best.keras`, it is the best one. Other `.keras` files have none.

    Args:
        path: Path of the run, or of a `.keras` file in it.
    """
    from keras_transformer.recipes import load_recipe

    path = pathlib.Path(path)
    folder = path if path.is_dir() else path.parent
    config = folder / CONFIG
    rows = []
    if path.name == BEST_MODEL:
        rows = [row for row in validations_of_run(folder) if row.get("is_best")]
    elif path.is_dir() or path.name == MODEL:
        final = final_scores_of_run(folder)
        rows = [final] if final else validations_of_run(folder)
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
    yield "tokenizer", f"{tokenizer.kind}, {_vocabulary_sizes(tokenizer)}"
    version = importlib.metadata.version
    packages = ("tensorflow", "tensorflow-text", "keras")
    yield "written with", ", ".join(f"{each} {version(each)}" for each in packages)


def _vocabulary_sizes(tokenizer):
    source, target = tokenizer, target_of(tokenizer)
    size = f"{target.vocabulary_size:,}"
    if source is target or source.pieces() == target.pieces():
        return f"{size} subwords for source and target"
    return f"{source.vocabulary_size:,} source and {size} target subwords"


def _export_rows(tokenizer_ops, parallel_parts, jit_compile):
    libraries = {"text": "tensorflow-text", "core": "core TensorFlow"}
    yield "tokenizer operations", libraries[tokenizer_ops]
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
        is_final = validation.get("split") == FINAL
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
        for name, title, how in (
            ("bleu", "BLEU", beam + bleu),
            ("chrf", "chrF", beam),
            ("f1", "bracketing F1", f"{beam}, labeled, COLLINS.prm"),
            ("perplexity", "perplexity", ""),
        ):
            if validation.get(name) is not None:
                # A score in `scores` may have the same title.
                title = f"{title}, validation"
                rows.append((title, validation[name], when + how))
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
