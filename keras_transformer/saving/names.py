"""File names of runs and presets, and paths of models. Does not import TensorFlow."""

import os
import pathlib
import re

from pydantic import (
    BaseModel,
    ConfigDict,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
)

from keras_transformer.errors import ModelError, RunError
from keras_transformer.untrusted import read_json_lines

MODEL = "model.keras"
BEST_MODEL = "best.keras"
METRICS = "metrics.jsonl"
CONFIG = "config.yaml"
TOKENIZER = "tokenizer"
CURVES = "curves.png"
# Report of `repeat`, in its output folder.
REPORT = "results.json"
# Settings and weights of a preset's model.
PRESET_CONFIG = "config.json"
PRESET_WEIGHTS = "model.weights.h5"
# Folder of the packaged models, each of which is a preset.
PRETRAINED = pathlib.Path(__file__).resolve().parents[1] / "pretrained"
# Value of "split" in the row of `metrics.jsonl` with the scores of `model.keras`.
FINAL = "final"
# File that shows that a run had checkpoints, even if all are lost.
SAVED = "saved.json"


def packaged_models():
    """Returns the folders of the models that the package contains, by name."""
    folders = sorted(PRETRAINED.iterdir()) if PRETRAINED.is_dir() else []
    return {each.name: each for each in folders if (each / PRESET_CONFIG).is_file()}


def locate_model(path):
    """Returns the local path of a model."""
    if is_hub_name(path):
        from keras_transformer.saving.hub import download

        return download(path)
    local = pathlib.Path(path)
    return local if local.exists() else packaged_models().get(str(path), local)


def is_hub_name(path):
    """Returns whether `path` begins with `hf:/`, like `hf://OWNER/NAME`."""
    # One slash is enough, because `pathlib.Path` removes the other.
    return re.match("hf:/", str(path)) is not None


def find_keras_file(path):
    """Returns the `.keras` file that `path` is or contains."""
    path = pathlib.Path(path)
    if not path.exists():
        raise ModelError(f"{path}: {missing_model_message()}")
    if path.is_file() and path.suffix == ".keras":
        return path
    if not path.is_dir():
        raise ModelError(f"{path}: neither a .keras file nor a folder")
    if (path / MODEL).is_file():
        return path / MODEL
    if (path / CONFIG).is_file():
        return None
    if [*path.glob("saved_model.pb"), *path.glob("*/saved_model.pb")]:
        raise ModelError(
            f"{path}: is a SavedModel, whose weights cannot be changed, averaged or "
            "combined. Use the run folder or the .keras file."
        )
    raise ModelError(
        f"{path}: contains no model. The folder must be a run (with config.yaml), a "
        "preset (with config.json and model.weights.h5) or a SavedModel, or contain "
        f"{MODEL}"
    )


def missing_model_message():
    """Returns the message for a path at which no file or folder exists."""
    names = ", ".join(packaged_models()) or "none"
    return f"no such file or folder, and no packaged model (packaged: {names})"


def tokenizer_folder(folder):
    """Returns the folder that contains the tokenizer of the model in `folder`."""
    inner = pathlib.Path(folder) / TOKENIZER
    return inner if inner.is_dir() else pathlib.Path(folder)


class _MetricsRow(BaseModel):
    """A line of `metrics.jsonl`. Metrics that are not finite are `None`."""

    model_config = ConfigDict(extra="allow")

    split: str
    step: NonNegativeInt
    seconds: NonNegativeFloat | None = None
    loss: float | None = None
    accuracy: float | None = None
    tokens_per_second: float | None = None
    learning_rate: float | None = None
    perplexity: float | None = None
    bleu: float | None = None
    chrf: float | None = None
    f1: float | None = None
    stage: PositiveInt | None = None
    best_metric: str | None = None
    is_best: bool | None = None


def metrics_lines(folder):
    """Reads a run's `metrics.jsonl`.

    Returns:
        List of (line, mapping) pairs, empty if there is no file. The lines are bytes
        without line endings.
    """
    path = pathlib.Path(folder) / METRICS
    if not os.path.lexists(path):
        return []
    lines = read_json_lines(path, _MetricsRow, error=RunError)
    return [(line, row.model_dump(exclude_unset=True)) for line, row in lines]


def metrics_of_run(folder):
    """Returns the rows of a run's `metrics.jsonl` as a list of mappings."""
    return [row for _, row in metrics_lines(folder)]


def validations_of_run(folder):
    """Returns the rows of a run's `metrics.jsonl` that describe validations."""
    return [row for row in metrics_of_run(folder) if row["split"] == "validation"]


def final_scores_of_run(folder):
    """Returns the row of a run's `metrics.jsonl` with the scores of `model.keras`."""
    rows = [row for row in metrics_of_run(folder) if row["split"] == FINAL]
    return rows[-1] if rows else None


def checkpoint_paths(folder):
    """Returns the checkpoints in `folder`, oldest first.

    Checkpoints are found by their index files, because TensorFlow's list of checkpoints
    may be lost.
    """
    found = {}
    for index in pathlib.Path(folder).glob("ckpt-*.index"):
        match = re.fullmatch(r"ckpt-(\d+)", index.stem)
        if match:
            found[int(match.group(1))] = str(index.with_suffix(""))
    return [found[step] for step in sorted(found)]
