"""Small models with random weights, whose outputs tests compare with formulas."""

import keras
import numpy as np
from layer_checks import randomize

import keras_transformer as kt

SIZES = {
    "vocabulary_size": 41,
    "num_layers": 2,
    "d_model": 12,
    "d_ff": 17,
    "num_heads": 3,
}
# Sources and targets differ in length, in each row and overall.
SOURCES = [[11, 4, 40, 9, 3], [23, 8, 3]]
TARGETS = [[2, 17, 4], [2, 30, 30, 5, 6, 12, 39]]
_SHARED = {}  # models by their arguments


def padded(rows, extra=0, pad_id=0):
    """Returns an int32 array of rows of ids, with `extra` more columns of padding."""
    length = max(map(len, rows)) + extra
    rows = [row + [pad_id] * (length - len(row)) for row in rows]
    return np.array(rows, "int32")


def inputs(source_extra=0, target_extra=0, pad_id=0):
    """Returns `SOURCES` and `TARGETS` as inputs of a model."""
    return {
        "source_ids": padded(SOURCES, source_extra, pad_id),
        "target_ids": padded(TARGETS, target_extra, pad_id),
    }


def built(*args, seed=5, **options):
    """Returns a new, built `Transformer` with these arguments."""
    keras.utils.set_random_seed(seed)
    model = kt.Transformer(*args, **options)
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    return model


def build_model(seed=5, **options):
    """Returns a new `Transformer` with `SIZES`, `options` and random weights."""
    model = built(seed=seed, **{**SIZES, **options})
    randomize(model)
    return model


def shared_model(seed=5, **options):
    """Returns a model that tests share and must not change."""
    key = repr((seed, options))
    if key not in _SHARED:
        _SHARED[key] = build_model(seed, **options)
    return _SHARED[key]
