"""File names of a run, and the model file for a path. Does not import TensorFlow."""

import contextlib
import json
import pathlib
import re

from keras_transformer.errors import ModelError

MODEL = "model.keras"
CONFIG = "config.yaml"
TOKENIZER = "tokenizer"
# File that shows that checkpoints existed, even if all are lost.
SAVED = "saved.json"


def keras_file(path):
    """Returns the `.keras` file at or in `path`, or `None` for a run without one.

    Raises:
        ModelError: If `path` is neither a `.keras` file nor a folder with a model.
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
        f"{path}: no model: neither a run (config.yaml), nor a .keras file, nor a "
        "SavedModel"
    )


def tokenizer_folder(folder):
    """Returns the folder of the tokenizer of a model in `folder`."""
    inner = pathlib.Path(folder) / TOKENIZER
    return inner if inner.is_dir() else pathlib.Path(folder)


def metrics_of_run(folder):
    """Returns the lines of a run's `metrics.jsonl` as mappings, if the file exists."""
    path = pathlib.Path(folder) / "metrics.jsonl"
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        # A process that is killed while writing leaves half a line.
        with contextlib.suppress(json.JSONDecodeError):
            lines.append(json.loads(line))
    return lines


def validations_of_run(folder):
    """Returns the lines of `metrics_of_run` that describe validations."""
    return [row for row in metrics_of_run(folder) if row.get("split") == "validation"]


def checkpoint_paths(folder):
    """Returns the paths of the checkpoints in `folder`, oldest first, without suffix.

    Index files identify checkpoints, since the folder's state file may be lost.
    """
    found = {}
    for index in pathlib.Path(folder).glob("ckpt-*.index"):
        match = re.fullmatch(r"ckpt-(\d+)", index.stem)
        if match:
            found[int(match.group(1))] = str(index.with_suffix(""))
    return [found[step] for step in sorted(found)]
