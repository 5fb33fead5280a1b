"""Names of the files of a run, and the model file that a path stands for."""

import json
import pathlib

from keras_transformer.errors import ModelError

MODEL = "model.keras"
CONFIG = "config.yaml"
TOKENIZER = "tokenizer"


def keras_file(path):
    """The `.keras` file that `path` is or holds, None for a run that has none yet.

    Raises:
        ModelError: neither a `.keras` file nor a folder with a model in it.
    """
    path = pathlib.Path(path)
    if path.is_file():
        if path.suffix != ".keras":
            raise ModelError(f"{path}: neither a .keras file nor a folder")
        return path
    if not path.is_dir():
        raise ModelError(f"{path}: no such file or folder")
    if (path / MODEL).is_file():
        return path / MODEL
    if (path / CONFIG).is_file():
        return None
    raise ModelError(
        f"{path}: no model here: neither a run (config.yaml), nor a .keras file, nor "
        "a SavedModel"
    )


def tokenizer_folder(folder):
    """Where the tokenizer of a model in `folder` lies."""
    inner = pathlib.Path(folder) / TOKENIZER
    return inner if inner.is_dir() else pathlib.Path(folder)


def metrics_of_run(folder):
    """The lines of a run's `metrics.jsonl` as mappings; none without such a file."""
    path = pathlib.Path(folder) / "metrics.jsonl"
    if not path.is_file():
        return []
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:  # cut off when the process was killed
            continue
    return lines
