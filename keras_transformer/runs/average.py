"""Averages the checkpoints of a run (section 6.1 of the paper)."""

import pathlib

from keras_transformer.files import replace_file
from keras_transformer.saving.checkpoints import average_checkpoints
from keras_transformer.saving.keras_file import save_model
from keras_transformer.saving.load import load_run
from keras_transformer.saving.names import FINAL, METRICS, MODEL, metrics_lines


def average_run(folder, last=5, output=None):
    """Averages the last checkpoints of a run and saves the model.

    If this replaces the run's `model.keras`, the scores of the old one are removed from
    `metrics.jsonl`.

    Args:
        folder: The run folder, the `output` of `train`.
        last: Number of checkpoints to average.
        output: Path of the `.keras` file. Defaults to `model.keras` in the run folder.

    Returns:
        The path of the file and the paths of the averaged checkpoints.

    Raises:
        RecipeError, DataError: If the run's recipe or tokenizer cannot be used.
        CheckpointError: If no checkpoint can be read, or one does not fit the model.
        ModelError: If the newest checkpoint is too small for the recipe.
        StorageError: If the disk is full.
        ValueError: If `last` is below 1.

    Examples:
        >>> found = kt.runs.average_run("runs/mine", last=5, output="mean.keras")
    """
    folder = pathlib.Path(folder)
    _, tokenizer, model = load_run(folder)
    paths = average_checkpoints(model, folder / "checkpoints", last)
    output = pathlib.Path(output) if output else folder / MODEL
    if output.resolve() == (folder / MODEL).resolve():
        rows = metrics_lines(folder)
        kept = [line for line, row in rows if row["split"] != FINAL]
        # Training writes to the file, too, but not while it has final scores.
        if len(kept) < len(rows):
            with replace_file(folder / METRICS) as temporary:
                temporary.write_bytes(b"".join(line + b"\n" for line in kept))
    save_model(model, output, tokenizer.fingerprint())
    return output, paths
