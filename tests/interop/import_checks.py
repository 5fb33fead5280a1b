"""Helpers for tests of imports: a model's logits, and the error about a folder."""

import pathlib

import numpy as np
import pytest
from layer_checks import numpy
from toolkit_models import SOURCE, TARGET

from keras_transformer.errors import UserError


def model_logits(model):
    """Returns logits `[len(TARGET) + 1, pieces]` for `SOURCE` and `TARGET`."""
    # Imported models have the start id after all others.
    start = model.vocabulary_size - 1
    ids = {"source_ids": np.array([SOURCE]), "target_ids": np.array([[start, *TARGET]])}
    return numpy(model(ids))[0]


def import_error(read, folder):
    """Returns the error message of `read(folder)`.

    The message must be one line of fewer than 500 characters that names the folder.
    """
    with pytest.raises(UserError) as caught:
        read(folder)
    message = str(caught.value)
    assert "\n" not in message and str(folder) in message and len(message) < 500
    return message


class FileOnUnpickle:
    """An object whose unpickling creates the file `path`."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path(self.path),)
