"""Description of a stored model, without loading its weights.

Only a run without `model.keras` needs TensorFlow, to count its parameters.
"""

import json
import pathlib
import zipfile

from keras_transformer.recipes import load_recipe
from keras_transformer.recipes.schema import MODEL_ARGUMENTS
from keras_transformer.saving import keras_file as keras_files
from keras_transformer.saving.load import load_run
from keras_transformer.saving.load import tokenizer_kind
from keras_transformer.saving.names import CONFIG
from keras_transformer.saving.names import checkpoint_paths
from keras_transformer.saving.names import keras_file
from keras_transformer.saving.names import metrics_of_run
from keras_transformer.saving.names import tokenizer_folder
from keras_transformer.saving.names import validations_of_run
from keras_transformer.saving.saved_model import newest_version

CARD = "MODEL_CARD.md"
# Titles of a model card's sections, and their keys. Cards of 0.1 have a "Licence".
_SECTIONS = {
    "Training": "training",
    "Scores": "scores",
    "Search": "decoding",
    "Data": "data",
    "Licence": "license",
    "License": "license",
}


def model_info(path):
    """Describes a run's folder, a `.keras` file or a SavedModel.

    Args:
        path: Same as `open_model`.

    Returns:
        Mapping for JSON: `path`, `kind`, `parameters`, `architecture`, `vocabulary`,
        `training`, `scores`, `decoding`, `files` (names to bytes) and `bytes`. Unknown
        values are missing.

    Raises:
        ModelError: If there is no model, or the model is damaged.
        RecipeError: If the run's config.yaml is invalid.
    """
    path = pathlib.Path(path)
    version = newest_version(path) if path.is_dir() else None
    if version is not None:
        return _describe_saved_model(version)
    return _describe_weights(path)


def _describe_weights(path):
    file = keras_file(path)
    folder = file.parent if file else path
    is_run = (folder / CONFIG).is_file()
    info = {"path": str(path), "kind": "run" if path.is_dir() else "keras file"}
    recipe = load_recipe(folder / CONFIG) if is_run else None
    if file is None:
        _, tokenizer, model = load_run(folder)
        info["parameters"] = model.count_params()
        config = recipe.model.constructor_arguments()
        vocabulary = {"kind": tokenizer.kind, "size": tokenizer.vocabulary_size}
    else:
        config, info["parameters"] = keras_files.check(file)
        info["written"] = _written(file)
        kind = recipe.tokenizer.kind if is_run else tokenizer_kind(folder)
        vocabulary = {"kind": kind, "size": config["vocabulary_size"]}
    names = (*MODEL_ARGUMENTS, "output_size")
    info["architecture"] = {name: config[name] for name in names if name in config}
    info["vocabulary"] = vocabulary
    if recipe is not None:
        info["training"] = _training(folder, recipe)
        info["scores"] = _validations(folder, recipe.validation_metric())
        info["decoding"] = recipe.decoding.model_dump()
    if path.is_dir():
        info["files"] = _sizes(path)
    else:
        tokenizer_files = _sizes(tokenizer_folder(folder), "tokenizer.*")
        info["files"] = {path.name: path.stat().st_size, **tokenizer_files}
    info["bytes"] = sum(info["files"].values())
    return info


def _describe_saved_model(version):
    info = {"path": str(version), "kind": "SavedModel"}
    card = version / CARD
    if card.is_file():
        sections = card_tables(card.read_text(encoding="utf-8"))
        model = sections.pop("Model", {})
        if not isinstance(model, dict):  # an edited card
            model = {"about": model}
        number = str(model.get("parameters", "")).replace(",", "")
        if number.isdecimal():
            info["parameters"] = int(number)
            del model["parameters"]
        if "tokenizer" in model:
            info["vocabulary"] = model.pop("tokenizer")
        info["architecture"] = model
        for title, name in _SECTIONS.items():
            if sections.get(title):
                info[name] = sections[title]
    info["files"] = _sizes(version)
    info["bytes"] = sum(info["files"].values())
    return info


def card_tables(text):
    """Reads the tables of a model card.

    Returns:
        Mapping of titles to tables, or to the text of a section without one. A table
        is a mapping of its first cells to the second one, or to the list of the rest.
    """
    sections = {}
    for part in text.split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        lines = [line for line in body.split("\n") if line.startswith("| ")]
        # The first two lines are the table's head.
        rows = [_cells(line) for line in lines[2:]]
        sections[title] = {
            first: others[0] if len(others) == 1 else others for first, *others in rows
        } or body.strip()
    return sections


def _cells(line):
    cells = line.removeprefix("| ").removesuffix(" |").replace("\\|", "\0").split(" | ")
    return [cell.replace("\0", "|") for cell in cells]


def _written(file):
    with zipfile.ZipFile(file) as archive:
        metadata = json.loads(archive.read("metadata.json"))
    date = metadata["date_saved"].replace("@", " ")
    return f"{date}, Keras {metadata['keras_version']}"


def _training(folder, recipe):
    """Returns the progress of a run and its main settings."""
    settings = recipe.training
    paths = checkpoint_paths(folder / "checkpoints")
    steps = [int(path.rpartition("-")[2]) for path in paths]
    lines = metrics_of_run(folder)
    facts = {
        "steps": max(steps, default=0),
        "steps wanted": settings.steps,
        "seconds": lines[-1]["seconds"] if lines else None,
        "checkpoints": steps,
        "average": settings.average_checkpoints,
        "batch_tokens": settings.batch_tokens,
        "schedule": settings.schedule,
        "precision": settings.mixed_precision or "float32",
        "began with": settings.initial_model,
        "data": recipe.data.kind,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _validations(folder, metric):
    """Returns the last and the best validation."""
    rows = validations_of_run(folder)
    if not rows:
        return {}
    scored = [row for row in rows if row.get(metric) is not None]
    scores = {"last validation": _scores_in(rows[-1])}
    if scored:
        choose = min if metric == "perplexity" else max
        best = choose(scored, key=lambda row: row[metric])
        scores["best validation"] = _scores_in(best)
    return scores


def _scores_in(row):
    return {name: row[name] for name in row if name not in ("split", "seconds")}


def _sizes(folder, pattern="*"):
    """Returns the sizes of a folder's files and folders in bytes."""
    return {
        each.name + ("/" if each.is_dir() else ""): _size(each)
        for each in sorted(folder.glob(pattern))
        if not each.name.startswith(".")
    }


def _size(path):
    if path.is_dir():
        return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
    return path.stat().st_size
