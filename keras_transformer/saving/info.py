"""Description of a stored model, without loading its weights.

Only a run without `model.keras` needs TensorFlow, to read its checkpoint.
"""

import contextlib
import os
from typing import Any, Literal

from pydantic import BaseModel

from keras_transformer.arguments import count_parameters
from keras_transformer.errors import CheckpointError, ModelError
from keras_transformer.recipes.schema import MODEL_ARGUMENTS
from keras_transformer.saving import keras_file, names
from keras_transformer.saving.load import model_settings
from keras_transformer.saving.preset import read_task
from keras_transformer.untrusted import read_json

_NAMES = (*MODEL_ARGUMENTS, "output_size")  # of the architecture
# Metrics in a run's log, and their titles in a model card.
METRICS = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "f1": "bracketing F1",
    "perplexity": "perplexity",
}
# Fields of `ModelInfo` that depend on where a model is.
_PLACE = {"path", "kind", "files", "bytes"}
_Settings = dict[str, Any]


class VocabularyInfo(BaseModel):
    """Vocabulary of a model.

    Attributes:
        kind: "bpe", "word_piece", "marian", or "fairseq". `None` if unknown.
        size: Number of ids of the target, and of the source if they share embeddings.
        source_size: Number of ids of the source, if it has separate embeddings.
    """

    kind: str | None = None
    size: int | None = None
    source_size: int | None = None


class Training(BaseModel):
    """Progress and settings of a model's training.

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


class Score(BaseModel):
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
        text: `TextSettings`, with the number of `words`, or empty if there are none.
        written: Date and Keras version of a file or preset, or the package versions
            with which an export was written.
        training: Progress and settings of the training.
        data: The section `data` of the recipe.
        decoding: Search settings.
        export: Options of an export, such as its tokenizer operations.
        scores: Scores on validation and test data.
        license: License of an export, a preset or an imported model.
        origin: Where an imported model comes from.
        files: Mapping of names to sizes in bytes. A folder's name ends in a slash.
        bytes: Sum of the sizes.
    """

    path: str = ""
    kind: Literal["run", "keras file", "preset", "SavedModel"] = "SavedModel"
    parameters: int | None = None
    architecture: _Settings = {}
    vocabulary: VocabularyInfo = VocabularyInfo()
    text: _Settings = {}
    written: str | None = None
    training: Training = Training()
    data: _Settings = {}
    decoding: _Settings = {}
    export: _Settings = {}
    scores: list[Score] = []
    license: str | None = None
    origin: _Settings = {}
    files: dict[str, int] = {}
    bytes: int = 0

    def describe_model(self, config):
        """Sets the architecture and the sizes of the vocabulary."""
        self.architecture = {name: config[name] for name in _NAMES if name in config}
        self.vocabulary = VocabularyInfo(
            size=config["vocabulary_size"],
            source_size=(config["variations"] or {}).get("source_vocabulary_size"),
        )

    def summary(self):
        """Returns the content of `summary.json`."""
        return self.model_dump_json(exclude=_PLACE, exclude_defaults=True)


def read_summary(folder):
    """Returns the `ModelInfo` in a folder's `summary.json`, empty if there is none."""
    path = folder / names.SUMMARY
    if not os.path.lexists(path):
        return ModelInfo()
    return read_json(path, ModelInfo, error=ModelError)


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

    Examples:
        >>> info = kt.saving.model_info("phrases")
        >>> info["parameters"], info["vocabulary"]["size"]
        (274176, 656)
    """
    source = names.locate(path)
    folder = source.weights if source.kind == "export" else source.folder
    if source.kind == "file":
        info, folder = ModelInfo(), source.path
        info.kind = "keras file"
        info.files = _sizes(folder.parent, folder.name) | _tokenizer_sizes(source)
    else:
        info = read_summary(folder)
        info.kind = "SavedModel" if source.kind == "export" else source.kind
        info.files = _sizes(folder)
    info.path = str(folder)
    info.bytes = sum(info.files.values())
    if source.kind == "preset":
        _describe_weights(source, info)
        task = read_task(source.path)
        if task is not None:
            info.vocabulary.kind = names.tokenizer_layout(source.tokenizer)[0]
            info.decoding = _flatten_section(task.search)
    elif source.kind != "export":
        _describe_run(source, info)
    # Of two vocabularies, the source's has the settings.
    for folder in () if source.kind == "export" else (".", "source"):
        if (file := source.tokenizer / folder / names.TEXT).is_file():
            info.text = flatten_text(read_json(file, _Settings, error=ModelError))
    return info.model_dump()


def _describe_run(source, info):
    """Describes a run's folder or a `.keras` file."""
    recipe = source.recipe()
    if source.weights is None:
        from keras_transformer import pipelines
        from keras_transformer.saving.checkpoints import count_stored_weights

        tokenizer = pipelines.load_tokenizer(source.tokenizer)
        settings = model_settings(recipe, tokenizer)
        info.describe_model(settings)
        if recipe.training.lora:  # its checkpoints contain only adapters
            info.parameters = count_parameters(settings)
        else:
            with contextlib.suppress(CheckpointError):
                info.parameters = count_stored_weights(source.path / "checkpoints")
    else:
        _describe_weights(source, info)
    if recipe is None:
        info.vocabulary.kind = names.tokenizer_layout(source.tokenizer)[0]
        return
    info.vocabulary.kind = recipe.tokenizer.kind
    rows = names.read_metrics(source.folder)
    if recipe.data.kind != "none":  # else the model is imported
        steps = [*names.checkpoint_paths(source.folder / "checkpoints")]
        info.training = Training(
            steps=max(steps, default=0),
            seconds=rows[-1].get("seconds") if rows else None,
            checkpoints=steps,
            settings=_flatten_section(recipe.training),
        )
    info.data = _flatten_section(recipe.data)
    info.decoding = _flatten_section(recipe.decoding)
    info.scores = _validation_scores(rows, recipe.validation_metric())


def _describe_weights(source, info):
    # There is no option to describe an unchecked file.
    with keras_file.open_checked(source, hint=None) as stored:
        info.parameters = stored.num_parameters
        info.written = stored.metadata.origin()
    info.describe_model(stored.settings)


def flatten_text(settings):
    """Returns the mapping of `TextSettings` with the number of its words."""
    words = settings.get("words", [])
    return {**settings, "words": len(words) if isinstance(words, list) else 0}


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
    chosen = [("final model", row) for row in rows if row["split"] == names.FINAL][-1:]
    rows = [row for row in rows if row["split"] == "validation"]
    chosen += [("last validation", row) for row in rows[-1:]]
    scored = [row for row in rows if isinstance(row.get(metric), float)]
    if scored:
        # Lower perplexity breaks ties, as it does when training chooses best.keras.
        sign = 1 if metric == "perplexity" else -1
        best = min(
            scored, key=lambda row: (sign * row[metric], row.get("perplexity") or 0)
        )
        chosen.append((f"best validation by {METRICS[metric]}", best))
    return [
        Score(
            name=f"{title}, validation",
            score=row[name],
            how=f"{which}, step {row['step']}",
        )
        for which, row in chosen
        for name, title in METRICS.items()
        if isinstance(row.get(name), float)
    ]


def _sizes(folder, pattern="*"):
    """Returns the sizes of a folder's files and folders in bytes."""
    return {
        each.name + ("/" if each.is_dir() else ""): _size(each)
        for each in sorted(folder.glob(pattern))
        if not each.name.startswith(".")
    }


def _tokenizer_sizes(source):
    """Returns the sizes of the tokenizer of a `.keras` file."""
    return _sizes(source.tokenizer, "tokenizer.*") or {
        **_sizes(source.tokenizer, "source"),
        **_sizes(source.tokenizer, "target"),
    }


def _size(path):
    # Links are not followed, because the target may be missing or a huge folder.
    if path.is_symlink():
        return path.lstat().st_size
    if path.is_dir():
        return sum(each.lstat().st_size for each in path.rglob("*") if each.is_file())
    return path.stat().st_size


def markdown_table(header, rows, align="---"):
    """Returns a table in Markdown. `align="---:"` aligns the columns to the right."""
    header = list(header)
    lines = [header, [align] * len(header), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(value):
    return " ".join(str(value).split()).replace("|", "\\|")
