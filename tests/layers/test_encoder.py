"""`EncoderLayer` and `Encoder` against the paper's formulas in NumPy."""

import keras
import numpy as np
import paper_in_numpy
import pytest
from keras import ops
from layer_checks import check_layer, numpy, randomize

from keras_transformer.layers import (
    Encoder,
    EncoderLayer,
    PositionalEncoding,
    TokenEmbedding,
)

GENERATOR = np.random.default_rng(6)
INPUTS = GENERATOR.normal(size=(2, 5, 7)).astype("float32")
SIZES = {"num_heads": 3, "key_dim": 5, "d_ff": 13, "value_dim": 2}
DROPOUTS = {"dropout": 0.1, "attention_dropout": 0.2}
LENGTHS = (5, 3)
SOURCE_MASK = np.arange(5) < np.array(LENGTHS)[:, None]


def build_layer(cls, *args, **kwargs):
    layer = cls(*args, **SIZES, **kwargs)
    layer.build(INPUTS.shape)
    randomize(layer)
    return layer


def test_encoder_layer_passes_all_layer_checks():
    kwargs = {**SIZES, **DROPOUTS}
    inputs = {"inputs": INPUTS, "attention_mask": SOURCE_MASK[:, None, :]}
    # Weights: 4 in self-attention, 4 in the feed-forward network, and 2 in each of two
    # normalizations. Dropouts: 1 in attention and 2 after sublayers.
    check_layer(EncoderLayer, kwargs, inputs, (2, 5, 7), 12, 3)


def test_encoder_passes_all_layer_checks():
    kwargs = {"num_layers": 1, **SIZES, **DROPOUTS, "normalization": "pre"}
    inputs = {"inputs": INPUTS, "source_mask": SOURCE_MASK}
    # A pre-norm stack ends with a normalization, which has 2 weights.
    check_layer(Encoder, kwargs, inputs, (2, 5, 7), 12 + 2, 3)


@pytest.mark.parametrize("normalization", ["post", "pre"])
def test_encoder_matches_the_paper_in_numpy(normalization):
    layer = build_layer(EncoderLayer, normalization=normalization)
    output = numpy(layer(INPUTS, attention_mask=SOURCE_MASK[:, None, :]))
    encoder = build_layer(Encoder, 2, normalization=normalization)
    encoded = numpy(encoder(INPUTS, source_mask=SOURCE_MASK))
    for i, length in enumerate(LENGTHS):
        x = INPUTS[i, :length].astype("float64")
        expected = paper_in_numpy.encoder_layer(layer, x)
        np.testing.assert_allclose(output[i, :length], expected, rtol=1e-3, atol=1e-4)
        expected = paper_in_numpy.stack(encoder, x, paper_in_numpy.encoder_layer)
        np.testing.assert_allclose(encoded[i, :length], expected, rtol=1e-3, atol=1e-4)


def test_encoder_ignores_padding():
    encoder = build_layer(Encoder, 2)
    expected = numpy(encoder(INPUTS, source_mask=SOURCE_MASK))
    other = np.where(SOURCE_MASK[..., None], INPUTS, 1e3).astype("float32")
    output = numpy(encoder(other, source_mask=SOURCE_MASK))
    np.testing.assert_array_equal(output[SOURCE_MASK], expected[SOURCE_MASK])
    assert (numpy(encoder(other))[1, :3] != expected[1, :3]).all()


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
