"""Tests presets against a second copy of Table 3 and a formula for parameter counts."""

import functools
import math

import keras
import pytest
import tensorflow as tf
from keras import ops

import keras_transformer as kt
from keras_transformer.presets import PRESETS, TRAINING_PRESETS

# Layers, d_model, d_ff, heads, d_k, d_v, dropout, and the millions of parameters, which
# the paper prints for some rows.
TABLE_3 = {
    "base": (6, 512, 2048, 8, 64, 64, 0.1, 65),
    "A1": (6, 512, 2048, 1, 512, 512, 0.1, None),
    "A2": (6, 512, 2048, 4, 128, 128, 0.1, None),
    "A3": (6, 512, 2048, 16, 32, 32, 0.1, None),
    "A4": (6, 512, 2048, 32, 16, 16, 0.1, None),
    "B1": (6, 512, 2048, 8, 16, 64, 0.1, 58),
    "B2": (6, 512, 2048, 8, 32, 64, 0.1, 60),
    "C1": (2, 512, 2048, 8, 64, 64, 0.1, 36),
    "C2": (4, 512, 2048, 8, 64, 64, 0.1, 50),
    "C3": (8, 512, 2048, 8, 64, 64, 0.1, 80),
    "C4": (6, 256, 2048, 8, 32, 32, 0.1, 28),
    "C5": (6, 1024, 2048, 8, 128, 128, 0.1, 168),
    "C6": (6, 512, 1024, 8, 64, 64, 0.1, 53),
    "C7": (6, 512, 4096, 8, 64, 64, 0.1, 90),
    "D1": (6, 512, 2048, 8, 64, 64, 0.0, None),
    "D2": (6, 512, 2048, 8, 64, 64, 0.2, None),
    "D3": (6, 512, 2048, 8, 64, 64, 0.1, None),
    "D4": (6, 512, 2048, 8, 64, 64, 0.1, None),
    "E": (6, 512, 2048, 8, 64, 64, 0.1, None),
    "big": (6, 1024, 4096, 16, 64, 64, 0.3, 213),
}
# Presets that are not in the table: for small data, and the parser of section 6.3.
OTHERS = {
    "tiny": (4, 128, 256, 4, 32, 32, 0.3, None),
    "small": (4, 256, 1024, 4, 64, 64, 0.3, None),
    "parsing": (4, 1024, 4096, 16, 64, 64, 0.1, None),
}
# Vocabulary sizes that give the printed numbers of parameters. The paper reports "about
# 37000".
VOCABULARY_SIZE = 41_100
BIG_VOCABULARY_SIZE = 36_000


@pytest.fixture(autouse=True)
def fast_weights(monkeypatch):
    """Initializes all weights with zeros, since drawing 213 million numbers is slow."""

    def zeros(self, shape, dtype=None, **kwargs):
        return ops.zeros(shape, dtype)

    for name in ("GlorotUniform", "RandomNormal"):
        monkeypatch.setattr(getattr(keras.initializers, name), "__call__", zeros)


def count(vocabulary_size, preset):
    """Returns the number of parameters of the model that a preset describes."""
    # Presets that differ only in dropout, which has no weights, are counted once.
    same = [
        name
        for name in PRESETS
        if {**PRESETS[name], "dropout": 0} == {**PRESETS[preset], "dropout": 0}
    ]
    return _count(vocabulary_size, same[0])


@functools.cache
def _count(vocabulary_size, preset):
    # A graph describes weights without allocating them.
    with tf.Graph().as_default():
        model = kt.Transformer.from_preset(preset, vocabulary_size, dropout=0.0)
        model.build({"source_ids": (None, None), "target_ids": (None, None)})
    assert model.count_params() == sum(
        math.prod(weight.shape) for weight in model.trainable_weights
    )
    return model.count_params()


def count_by_formula(vocabulary_size, num_layers, d_model, d_ff, heads, d_k, d_v):
    """Computes the number of parameters.

    Embeddings are tied. Only feed-forward networks and norms have biases.
    """
    query_and_key = 2 * d_model * heads * d_k
    value_and_output = 2 * d_model * heads * d_v
    attention = query_and_key + value_and_output
    feed_forward = d_model * d_ff + d_ff + d_ff * d_model + d_model
    norm = 2 * d_model
    encoder_layer = attention + norm + feed_forward + norm
    decoder_layer = 2 * (attention + norm) + feed_forward + norm
    layers = num_layers * (encoder_layer + decoder_layer)
    return vocabulary_size * d_model + layers


def test_presets_have_every_row_of_table_3():
    assert set(PRESETS) == set(TABLE_3) | set(OTHERS)
    assert kt.PRESETS is PRESETS


@pytest.mark.parametrize("name", [*TABLE_3, *OTHERS])
def test_preset_arguments_match_table_3(name):
    row = {**TABLE_3, **OTHERS}[name]
    names = ("num_layers", "d_model", "d_ff", "num_heads", "key_dim", "value_dim")
    expected = dict(zip((*names, "dropout"), row[:-1], strict=True))
    if name == "E":
        expected.update(positions="learned", max_length=512)
    assert PRESETS[name] == expected


@pytest.mark.parametrize("name", [*TABLE_3, *OTHERS])
def test_preset_parameter_counts_match_table_3(name):
    *sizes, _, printed = {**TABLE_3, **OTHERS}[name]
    size = BIG_VOCABULARY_SIZE if name == "big" else VOCABULARY_SIZE
    expected = count_by_formula(size, *sizes)
    if name == "E":
        # A table of positions for the source and one for the target.
        expected += 2 * 512 * 512
    assert count(size, name) == expected
    if printed is not None:
        assert round(expected / 1e6) == printed


@pytest.mark.parametrize(
    ("name", "vocabulary_size", "millions"),
    [
        # Computed as in `count_by_formula`: V x d_model + 44,101,632 for base, with
        # vocabulary size V.
        ("base", 41_100, 65.14),
        ("base", 37_000, 63.05),
        ("big", 37_000, 214.2),
        # Wu et al. (2021): 2.6 million with a joint vocabulary of 10,000.
        ("tiny", 10_000, 2.60),
    ],
)
def test_preset_parameter_counts_at_other_vocabulary_sizes(
    name, vocabulary_size, millions
):
    parameters = count(vocabulary_size, name)
    last_digit = 0.1 if millions > 99 else 0.01
    assert parameters / 1e6 == pytest.approx(millions, abs=last_digit / 2)


def test_training_presets_match_table_3():
    """Rows D3 and D4 change the label smoothing."""
    assert TRAINING_PRESETS["D3"] == {"label_smoothing": 0.0}
    assert TRAINING_PRESETS["D4"] == {"label_smoothing": 0.2}
    assert set(TRAINING_PRESETS) <= set(PRESETS)
