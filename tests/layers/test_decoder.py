"""Masks of `DecoderLayer` and `Decoder`. test_transformer.py has the formulas."""

import numpy as np
import pytest
from keras import ops
from layer_checks import numpy, randomize

from keras_transformer.layers import Decoder, DecoderLayer, TokenEmbedding

GENERATOR = np.random.default_rng(7)
INPUTS = GENERATOR.normal(size=(2, 4, 7)).astype("float32")
ENCODER_OUTPUT = GENERATOR.normal(size=(2, 6, 7)).astype("float32")
SIZES = {"num_heads": 3, "key_dim": 5, "d_ff": 13, "value_dim": 2}
LENGTHS = (3, 6)
SOURCE_MASK = np.arange(6) < np.array(LENGTHS)[:, None]


def build_layer(cls, *args, **kwargs):
    layer = cls(*args, **SIZES, **kwargs)
    layer.build(INPUTS.shape, ENCODER_OUTPUT.shape)
    randomize(layer)
    return layer


@pytest.mark.parametrize("cls", [DecoderLayer, Decoder])
def test_decoder_uses_implicit_masks(cls):
    embedding = TokenEmbedding(6, 7)
    source = embedding(np.where(SOURCE_MASK, 3, 0))
    target_ids = np.array([[2, 4, 5, 0], [2, 0, 0, 0]])
    target = embedding(target_ids)

    def bare(x):
        """Returns the same vectors without a Keras mask."""
        return ops.convert_to_tensor(ops.convert_to_numpy(x))

    layer = build_layer(cls, 2) if cls is Decoder else build_layer(cls)
    output = layer(target, source)
    expected = numpy(layer(bare(target), bare(source), source_mask=SOURCE_MASK))
    np.testing.assert_array_equal(numpy(output)[0, :3], expected[0, :3])
    np.testing.assert_array_equal(numpy(output)[1, :1], expected[1, :1])
    np.testing.assert_array_equal(numpy(output._keras_mask), target_ids != 0)
    # An explicit mask takes the place of the implicit one.
    np.testing.assert_array_equal(
        numpy(layer(bare(target), source, source_mask=~SOURCE_MASK)),
        numpy(layer(bare(target), bare(source), encoder_output_mask=~SOURCE_MASK)),
    )


def test_decoder_is_finite_for_a_source_without_tokens():
    decoder = build_layer(Decoder, 2)
    output = numpy(decoder(INPUTS, ENCODER_OUTPUT, source_mask=np.zeros((2, 6), bool)))
    assert np.isfinite(output).all()
