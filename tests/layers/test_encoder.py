"""Masks of `EncoderLayer` and `Encoder`. test_transformer.py has the formulas."""

import keras
import numpy as np
import pytest
from keras import ops
from layer_checks import numpy, randomize

from keras_transformer.layers import (
    Encoder,
    EncoderLayer,
    PositionalEncoding,
    TokenEmbedding,
)

GENERATOR = np.random.default_rng(6)
INPUTS = GENERATOR.normal(size=(2, 5, 7)).astype("float32")
SIZES = {"num_heads": 3, "key_dim": 5, "d_ff": 13, "value_dim": 2}
LENGTHS = (5, 3)
SOURCE_MASK = np.arange(5) < np.array(LENGTHS)[:, None]


def build_layer(cls, *args, **kwargs):
    layer = cls(*args, **SIZES, **kwargs)
    layer.build(INPUTS.shape)
    randomize(layer)
    return layer


@pytest.mark.parametrize("cls", [EncoderLayer, Encoder])
def test_encoder_uses_implicit_mask(cls):
    """The mask passes from `TokenEmbedding` through the positions to the output."""
    ids = np.array([[5, 2, 4, 3, 1], [1, 4, 3, 0, 0]])
    vectors = PositionalEncoding()(TokenEmbedding(6, 7)(ids))
    bare = ops.convert_to_tensor(ops.convert_to_numpy(vectors))
    layer = build_layer(cls, 2) if cls is Encoder else build_layer(cls)
    output = layer(vectors)
    np.testing.assert_array_equal(numpy(output), numpy(layer(bare, mask=SOURCE_MASK)))
    np.testing.assert_array_equal(ops.convert_to_numpy(output._keras_mask), SOURCE_MASK)
    first_hidden = np.arange(5)[None] > [[0], [0]]
    if cls is Encoder:
        # An explicit mask takes the place of the implicit one.
        found = layer(vectors, source_mask=first_hidden)
        expected = layer(bare, source_mask=first_hidden)
    else:
        # As in Keras's attention, a position is hidden if either mask hides it.
        found = layer(vectors, attention_mask=first_hidden[:, None])
        expected = layer(bare, attention_mask=(SOURCE_MASK & first_hidden)[:, None])
    np.testing.assert_array_equal(numpy(found), numpy(expected))


def test_encoder_layers_share_no_weights():
    encoder = build_layer(Encoder, 3, activation="gelu")
    assert len({weight.path for weight in encoder.weights}) == 3 * 12
    for layer in encoder.layers:
        assert layer.feed_forward.activation is keras.activations.gelu
