"""Description of a stored model, without loading its weights.

Only a run without `model.keras` needs TensorFlow, to read its checkpoint.
"""

import contextlib
import os
import re
import zipfile
from typing import Any, Literal

from pydantic import BaseModel

from keras_transformer.errors import CheckpointError, ModelError, UserError
from keras_transformer.recipes import load_recipe
from keras_transformer.recipes.schema import MODEL_ARGUMENTS
from keras_transformer.saving import keras_file
from keras_transformer.saving.card import CARD, card_license, card_tables
from keras_transformer.saving.load import model_settings
from keras_transformer.saving.names import (
    CONFIG,
    FINAL,
    TOKENIZER,
    checkpoint_paths,
    find_keras_file,
    locate_model,
    metrics_of_run,
    tokenizer_folder,
)
from keras_transformer.saving.preset import (
    TOKENIZER_ASSETS,
    check_preset,
    is_preset,
    read_metadata,
    read_task,
)
from keras_transformer.saving.saved_model import newest_version
from keras_transformer.saving.vocabularies import (
    VocabularyInfo,
    parse_vocabulary,
    tokenizer_kind,
    vocabulary_info,
)
from keras_transformer.untrusted import parse_json, read_text

_NAMES = (*MODEL_ARGUMENTS, "output_size")  # of the architecture
# Metrics in a run's log, and their titles in a model card.
_METRICS = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "f1": "bracketing F1",
    "perplexity": "perplexity",
}
_CONSTANTS = {"True": True, "False": False, "None": None}
_Settings = dict[str, Any]


class _Training(BaseModel):
    """Progress and settings of the training.

    Attributes:
        steps: Step of the newest checkpoint.
        seconds: Training time in seconds, or `None` if unknown.
        checkpoints: Steps of all checkpoints.
        settings: The section `training` of the recipe.
    """

    steps: int | None = None
    seconds: float | None = None
    checkpoints: list[int] = []
    settings: _Settings = {}


class _Score(BaseModel):
    """Score on validation or test data.

    Attributes:
        name: Metric, such as "BLEU" for test data or "BLEU, validation".
        score: Value, or `None` if it is not a number.
        how: Description of the measurement, such as the step and the beam size.
    """

    name: str
    score: float | None = None
    how: str = ""


class ModelInfo(BaseModel):
    """Description of a model, with the same attributes for every kind of model.

    `architecture`, `data`, `decoding` and `export` map names to text, numbers,
    booleans, or `None`.

    Attributes:
        path: Path of the run, the `.keras` file, the preset, or the version folder of
            an export.
        kind: `"run"`, `"keras file"`, `"preset"` or `"SavedModel"`.
        parameters: Number of parameters, or `None` if unknown.
        architecture: Arguments of `Transformer`.
        vocabulary: Kind and size of the vocabulary.
        written: Date and Keras version of the file, or the package versions in a model
            card.
        training: Progress and settings of the training.
        data: The section `data` of the recipe.
        decoding: Search settings.
        export: Options of an export, such as its tokenizer operations.
        scores: Scores on validation and test data.
        license: License in the model card of an export or preset.
        files: Mapping of names to sizes in bytes. A folder's name ends in a slash.
        bytes: Sum of the sizes.
    """

    path: str
    kind: Literal["run", "keras file", "preset", "SavedModel"]
    parameters: int | None = None
    architecture: _Settings = {}
    vocabulary: VocabularyInfo = VocabularyInfo()
    written: str | None = None
    training: _Training = _Training()
    data: _Settings = {}
    decoding: _Settings = {}
    export: _Settings = {}
    scores: list[_Score] = []
    license: str | None = None
    files: dict[str, int] = {}
    bytes: int = 0


def model_info(path):
    """Describes a run's folder, a `.keras` file, a preset or a SavedModel.

    Args:
        path: Path or name of the model, as accepted by `open_model`.

    Returns:
        The attributes of `ModelInfo` as a dict of JSON values. Unknown values are
        `None` or empty.

    Raises:
        ModelError: If there is no model, or the model is damaged.
        RunError: If the run's metrics.jsonl is damaged.
        RecipeError: If the run's config.yaml is invalid.
        DataError: If a run without `model.keras` has no readable tokenizer.
    """
    path = locate_model(path)
    version = newest_version(path) if path.is_dir() else None
    if version is not None:
        info = _describe_by_card(version, "SavedModel")
        info.files = _sizes(version)
    elif is_preset(path):
        info = _describe_preset(path)
        info.files = _sizes(path)
    else:
        info = _describe_weights(path)
    info.bytes = sum(info.files.values())
    return info.model_dump()


def _describe_weights(path):
    """Describes a run's folder or a `.keras` file."""
    file = find_keras_file(path)
    folder = file.parent if file else path
    is_run = (folder / CONFIG).is_file()
    info = ModelInfo(path=str(path), kind="run" if path.is_dir() else "keras file")
    recipe = load_recipe(folder / CONFIG) if is_run or file is None else None
    if file is None:
        from keras_transformer import pipelines
        from keras_transformer.saving.checkpoints import count_stored_weights

        tokenizer = pipelines.load_tokenizer(folder / TOKENIZER)
        config = model_settings(recipe, tokenizer)
        info.vocabulary = vocabulary_info(tokenizer.kind, config)
        with contextlib.suppress(CheckpointError):
            _, info.parameters = count_stored_weights(folder / "checkpoints")
    else:
        # There is no option to describe an unchecked file.
        config, info.parameters = keras_file.check(file, hint=None)
        info.written = _describe_origin(file)
        kind = recipe.tokenizer.kind if is_run else tokenizer_kind(folder)
        info.vocabulary = vocabulary_info(kind, config)
    info.architecture = {name: config[name] for name in _NAMES if name in config}
    if recipe is not None:
        rows = metrics_of_run(folder)
        if recipe.data.kind != "none":  # else the model is imported
            info.training = _describe_training(folder, recipe, rows)
        info.data = _flatten_section(recipe.data)
        info.decoding = _flatten_section(recipe.decoding)
        info.scores = _validation_scores(rows, recipe.validation_metric())
    if path.is_dir():
        info.files = _sizes(path)
    else:
        tokenizer_path = tokenizer_folder(folder)
        tokenizer_files = _sizes(tokenizer_path, "tokenizer.*") or {
            **_sizes(tokenizer_path, "source"),
            **_sizes(tokenizer_path, "target"),
        }
        info.files = {path.name: path.stat().st_size, **tokenizer_files}
    return info


def _describe_preset(folder):
    """Describes a preset by its files, and by its model card if it has one."""
    config, parameters = check_preset(folder)
    task, metadata = read_task(folder), read_metadata(folder)
    info = _describe_by_card(folder, "preset")
    info.parameters = parameters
    if metadata.date_saved:
        date = metadata.date_saved.replace("@", " ")
        info.written = f"{date}, Keras {metadata.keras_version}"
    info.architecture = {name: config[name] for name in _NAMES}
    info.vocabulary = vocabulary_info(None, config)
    if task is not None:
        info.vocabulary.kind = tokenizer_kind(folder / TOKENIZER_ASSETS)
        info.decoding = _flatten_section(task.search)
    return info


def _describe_by_card(folder, kind):
    """Describes a preset or an export by its model card, if it has one."""
    info = ModelInfo(path=str(folder), kind=kind)
    card = folder / CARD
    if not os.path.lexists(card):
        return info
    sections = card_tables(read_text(card, error=ModelError))
    model = _table(sections, "Model")
    # This row is the same in all cards. It is not an argument of `Transformer`.
    model.pop("architecture", None)
    if isinstance(model.get("parameters"), int):
        info.parameters = model.pop("parameters")
    written = model.pop("written with", None)
    info.written = None if written is None else str(written)
    info.vocabulary = parse_vocabulary(str(model.pop("tokenizer", "")))
    info.architecture = model
    info.training.settings = _table(sections, "Training")
    info.data = _table(sections, "Data")
    info.decoding = _table(sections, "Search")
    info.export = _table(sections, "Export")
    scores = sections.get("Scores")
    if isinstance(scores, dict):
        info.scores = [_parse_score(name, cells) for name, cells in scores.items()]
    info.license = card_license(sections)
    return info


def _table(sections, title):
    """Returns a section of a card as settings. Plain text becomes `{"about": text}`."""
    table = sections.get(title) or {}
    if isinstance(table, str):
        return {"about": " ".join(table.split())}
    return {name: _parse_cell(cell) for name, cell in table.items()}


def _parse_cell(cell):
    """Returns the number, boolean, or `None` in a cell, or else its text."""
    if not isinstance(cell, str):
        return " | ".join(cell)
    if cell in _CONSTANTS:
        return _CONSTANTS[cell]
    # Only the number of parameters has thousands separators.
    is_count = re.fullmatch(r"\d{1,3}(,\d{3})+", cell)
    try:
        return parse_json(cell.replace(",", "") if is_count else cell, int | float, "")
    except UserError:
        return cell


def _parse_score(name, cells):
    score, *how = cells if isinstance(cells, list) else [cells]
    score = _parse_cell(score)
    is_number = isinstance(score, int | float) and not isinstance(score, bool)
    return _Score(name=name, score=score if is_number else None, how=" | ".join(how))


class _Metadata(BaseModel):
    """Content of a `.keras` file's `metadata.json`."""

    date_saved: str
    keras_version: str


def _describe_origin(file):
    with zipfile.ZipFile(file) as archive:
        content = archive.read("metadata.json")
    metadata = parse_json(content, _Metadata, f"{file}: metadata.json", ModelError)
    return f"{metadata.date_saved.replace('@', ' ')}, Keras {metadata.keras_version}"


def _describe_training(folder, recipe, rows):
    """Returns the progress of a run and its settings."""
    paths = checkpoint_paths(folder / "checkpoints")
    steps = [int(path.rpartition("-")[2]) for path in paths]
    return _Training(
        steps=max(steps, default=0),
        seconds=rows[-1].get("seconds") if rows else None,
        checkpoints=steps,
        settings=_flatten_section(recipe.training),
    )


def _flatten_section(section):
    """Returns a section of a recipe as settings without nesting."""
    return {
        name: flatten_setting(value) for name, value in section.model_dump().items()
    }


def flatten_setting(value):
    """Returns a value of a recipe, as text if it is a mapping or a list.

    Keys whose value is `None` are omitted. Mappings in a list, such as
    `training.stages`, are numbered.
    """
    if isinstance(value, dict):
        given = {name: each for name, each in value.items() if each is not None}
        return "; ".join(
            f"{name} {flatten_setting(each)}" for name, each in given.items()
        )
    if isinstance(value, list) and value and isinstance(value[0], dict):
        parts = (flatten_setting(each) for each in value)
        return ". ".join(f"{number}: {part}" for number, part in enumerate(parts, 1))
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _validation_scores(rows, metric):
    """Returns the scores of the final model and of the last and best validations."""
    chosen = [("final model", row) for row in rows if row["split"] == FINAL][-1:]
    rows = [row for row in rows if row["split"] == "validation"]
    chosen += [("last validation", row) for row in rows[-1:]]
    scored = [row for row in rows if isinstance(row.get(metric), float)]
    if scored:
        # Lower perplexity breaks ties, as it does when training chooses best.keras.
        sign = 1 if metric == "perplexity" else -1
        best = min(
            scored, key=lambda row: (sign * row[metric], row.get("perplexity") or 0)
        )
        chosen.append((f"best validation by {_METRICS[metric]}", best))
    return [
        _Score(
            name=f"{title}, validation",
            score=row[name],
            how=f"{which}, step {row['step']}",
        )
        for which, row in chosen
        for name, title in _METRICS.items()
        if isinstance(row.get(name), float)
    ]


def _sizes(folder, pattern="*"):
    """Returns the sizes of a folder's files and folders in bytes."""
    return {
        each.name + ("/" if each.is_dir() else ""): _size(each)
        for each in sorted(folder.glob(pattern))
        if not each.name.startswith(".")
    }


def _size(path):
    # Links are not followed, because the target may be missing or a huge folder.
    if path.is_symlink():
        return path.lstat().st_size
    if path.is_dir():
        return sum(each.lstat().st_size for each in path.rglob("*") if each.is_file())
    return path.stat().st_size
