"""Small models with random weights, whose outputs tests compare with formulas."""

import keras
from layer_checks import randomize

import keras_transformer as kt

SIZES = {
    "vocabulary_size": 41,
    "num_layers": 2,
    "d_model": 12,
    "d_ff": 17,
    "num_heads": 3,
}
_SHARED = {}  # models by their arguments


def build_model(seed=5, **options):
    """Returns a new `Transformer` with `SIZES`, `options` and random weights."""
    keras.utils.set_random_seed(seed)
    model = kt.Transformer(**{**SIZES, **options})
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    randomize(model)
    return model


def shared_model(seed=5, **options):
    """Returns a model that tests share and must not change."""
    key = repr((seed, options))
    if key not in _SHARED:
        _SHARED[key] = build_model(seed, **options)
    return _SHARED[key]
