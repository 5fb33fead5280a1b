"""File names of runs and presets, and where a model is. Does not import TensorFlow."""

import dataclasses
import itertools
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
from keras_transformer.recipes import load_recipe
from keras_transformer.recipes.keys import name_hint
from keras_transformer.untrusted import read_json_lines

MODEL = "model.keras"
BEST_MODEL = "best.keras"
# Initial model of a run that trains adapters, and the adapters that it has trained.
BASE_MODEL = "base.keras"
ADAPTERS = "adapters"
METRICS = "metrics.jsonl"
CONFIG = "config.yaml"
TOKENIZER = "tokenizer"
TEXT = "text.json"  # the text settings of a vocabulary
CURVES = "curves.png"
DISTILLED = "distilled"  # folder of the text that `distill` trains on
# Files that describe a preset, an export or an imported model: for people, and the same
# facts for `info`.
CARD = "MODEL_CARD.md"
SUMMARY = "summary.json"
# Report of `repeat`, in its output folder.
REPORT = "results.json"
# Settings, weights and tokenizer of a preset's model.
PRESET_CONFIG = "config.json"
PRESET_WEIGHTS = "model.weights.h5"
TOKENIZER_ASSETS = "assets/tokenizer"
_TOKENIZER_FILES = {
    "tokenizer.model": "bpe",
    "tokenizer.json": "word_piece",
    "tokenizer.marian": "marian",
    "tokenizer.fairseq": "fairseq",
}
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


@dataclasses.dataclass(frozen=True)
class ModelSource:
    """A model on disk, found once by `locate`.

    Attributes:
        kind: "run", "file" (a `.keras` file), "preset" or "export". A folder with
            `model.keras` but without a recipe is also a run.
        path: Path of the run, the file, the preset, or the export.
        weights: File of weights, or the folder of an export's newest version. `None`
            for a run that has only checkpoints.
        tokenizer: Folder of the tokenizer. `None` for an export.
    """

    kind: str
    path: pathlib.Path
    weights: pathlib.Path | None
    tokenizer: pathlib.Path | None

    def __str__(self):
        return str(self.path)

    @property
    def folder(self):
        """Folder with the recipe and the model card."""
        return self.path.parent if self.kind == "file" else self.path

    def recipe(self):
        """Returns the recipe of a run or of a `.keras` file in it, or `None`."""
        config = self.folder / CONFIG
        has_recipe = self.kind in ("run", "file") and config.is_file()
        return load_recipe(config) if has_recipe else None


def locate(path):
    """Finds a model, given its path, a packaged name, `hf://OWNER/NAME` or its source.

    An existing path takes precedence over a name. Raises a `ModelError` if there is no
    model, or if a preset cannot be downloaded.
    """
    if isinstance(path, ModelSource):
        return path
    if is_hub_name(path):
        from keras_transformer.saving.hub import download

        local = download(path)
    else:
        local = pathlib.Path(path)
        if not local.exists():
            packaged = packaged_models()
            if str(path) not in packaged:
                names = ", ".join(packaged) or "none"
                beside = local.parent.glob("*.keras"), local.parent.glob("*/")
                known = [*packaged, *map(str, itertools.chain(*beside))]
                raise ModelError(
                    f"{path}: no such file or folder, and no packaged model (packaged: "
                    f"{names}){name_hint(str(local), known)}"
                )
            local = packaged[str(path)]
    if local.is_file() and local.suffix == ".keras":
        return ModelSource("file", local, local, _tokenizer_folder(local.parent))
    if not local.is_dir():
        raise ModelError(f"{local}: neither a .keras file nor a folder")
    if version := newest_version(local):
        return ModelSource("export", local, version, None)
    if is_preset(local):
        weights = local / PRESET_WEIGHTS
        return ModelSource("preset", local, weights, local / TOKENIZER_ASSETS)
    weights = local / MODEL if (local / MODEL).is_file() else None
    if weights is None and not (local / CONFIG).is_file():
        raise ModelError(
            f"{path}: contains no model. The folder must be a run (with config.yaml), "
            "a preset (with config.json and model.weights.h5) or a SavedModel, or "
            f"contain {MODEL}. Import other models, such as OPUS-MT's, first: "
            f"keras-transformer import {path} FOLDER"
        )
    return ModelSource("run", local, weights, _tokenizer_folder(local))


def is_hub_name(path):
    """Returns whether `path` begins with `hf:/`, like `hf://OWNER/NAME`."""
    # One slash is enough, because `pathlib.Path` removes the other.
    return re.match("hf:/", str(path)) is not None


def newest_version(folder):
    """Returns the folder of an export's newest version, or `None` if there is none.

    If `folder` is itself the folder of a version, it is returned.
    """
    if (folder / "saved_model.pb").is_file():
        return folder
    versions = [
        each
        for each in folder.iterdir()
        if each.name.isdecimal() and (each / "saved_model.pb").is_file()
    ]
    return max(versions, key=lambda each: int(each.name), default=None)


def is_preset(folder):
    """Returns whether a folder contains the model files of a preset."""
    return all((folder / name).is_file() for name in (PRESET_CONFIG, PRESET_WEIGHTS))


def _tokenizer_folder(folder):
    inner = folder / TOKENIZER
    return inner if inner.is_dir() else folder


def tokenizer_layout(folder):
    """Returns the kind of a model's tokenizer, and whether both sides share it.

    The name of the tokenizer's file determines the kind. Separate tokenizers are in the
    folders `source` and `target`.
    """
    for parent, is_shared in ((folder, True), (folder / "target", False)):
        for name, kind in _TOKENIZER_FILES.items():
            if (parent / name).is_file():
                return kind, is_shared
    names = " or ".join(_TOKENIZER_FILES)
    raise ModelError(f"{folder}: must contain a tokenizer ({names})")


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
    """Returns the (line, mapping) pairs of a run's `metrics.jsonl`, if it exists.

    The lines are bytes without line endings.
    """
    path = pathlib.Path(folder) / METRICS
    if not os.path.lexists(path):
        return []
    lines = read_json_lines(path, _MetricsRow, error=RunError)
    return [(line, row.model_dump(exclude_unset=True)) for line, row in lines]


def read_metrics(folder):
    """Returns the rows of a run's `metrics.jsonl` as a list of mappings."""
    return [row for _, row in metrics_lines(folder)]


def read_validations(folder):
    """Returns the rows of a run's `metrics.jsonl` that describe validations."""
    return [row for row in read_metrics(folder) if row["split"] == "validation"]


def read_final_scores(folder):
    """Returns the row of a run's `metrics.jsonl` with the scores of `model.keras`."""
    rows = [row for row in read_metrics(folder) if row["split"] == FINAL]
    return rows[-1] if rows else None


def checkpoint_paths(folder):
    """Returns the checkpoints in `folder` by their steps, oldest first."""
    found = {}
    for path in pathlib.Path(folder).glob("ckpt-*.npz"):
        if match := re.fullmatch(r"ckpt-(\d+)", path.stem):
            found[int(match.group(1))] = path
    return dict(sorted(found.items()))
