"""Averaging the checkpoints of a run."""

import pathlib

from keras_transformer.files import replace_file
from keras_transformer.files import told_when_full
from keras_transformer.saving.checkpoints import average_checkpoints
from keras_transformer.saving.keras_file import note_tokenizer
from keras_transformer.saving.load import load_run
from keras_transformer.saving.names import MODEL


def average_run(folder, last=5, output=None):
    """Averages a run's last checkpoints into a `.keras` file.

    Args:
        folder: The run's folder.
        last: Number of checkpoints.
        output: The file. None: `model.keras` in the run's folder.

    Returns:
        The file's path and the paths of the checkpoints.

    Raises:
        CheckpointError: no checkpoint, or one of another model.
    """
    folder = pathlib.Path(folder)
    _, tokenizer, model = load_run(folder)
    paths = average_checkpoints(model, folder / "checkpoints", last)
    output = pathlib.Path(output) if output else folder / MODEL
    with told_when_full(output), replace_file(output) as temporary:
        model.save(temporary)
        note_tokenizer(temporary, tokenizer.fingerprint())
    return output, paths
