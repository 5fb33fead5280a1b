"""`DecoderLayer` and `Decoder` against the paper's formulas in NumPy."""

import numpy as np
import paper_in_numpy
import pytest
from keras import ops
from layer_checks import check_layer, numpy, randomize

from keras_transformer.layers import Decoder, DecoderLayer, TokenEmbedding

GENERATOR = np.random.default_rng(7)
INPUTS = GENERATOR.normal(size=(2, 4, 7)).astype("float32")
ENCODER_OUTPUT = GENERATOR.normal(size=(2, 6, 7)).astype("float32")
SIZES = {"num_heads": 3, "key_dim": 5, "d_ff": 13, "value_dim": 2}
DROPOUTS = {"dropout": 0.1, "attention_dropout": 0.2}
LENGTHS = (3, 6)
SOURCE_MASK = np.arange(6) < np.array(LENGTHS)[:, None]
NORMALIZATIONS = pytest.mark.parametrize("normalization", ["post", "pre"])


def build_layer(cls, *args, **kwargs):
    layer = cls(*args, **SIZES, **kwargs)
    layer.build(INPUTS.shape, ENCODER_OUTPUT.shape)
    randomize(layer)
    return layer


INPUTS_BY_NAME = {
    "inputs": INPUTS,
    "encoder_output": ENCODER_OUTPUT,
    "source_mask": SOURCE_MASK,
}


def test_decoder_layer_passes_all_layer_checks():
    kwargs = {**SIZES, **DROPOUTS}
    # Weights: 4 in each of two attention sublayers, 4 in the feed-forward network, and
    # 2 in each of three normalizations. Dropouts: 2 in attention, 3 after sublayers.
    check_layer(DecoderLayer, kwargs, INPUTS_BY_NAME, (2, 4, 7), 18, 5)


def test_decoder_passes_all_layer_checks():
    kwargs = {"num_layers": 1, **SIZES, **DROPOUTS, "normalization": "pre"}
    # A pre-norm stack ends with a normalization, which has 2 weights.
    check_layer(Decoder, kwargs, INPUTS_BY_NAME, (2, 4, 7), 18 + 2, 5)


@NORMALIZATIONS
def test_decoder_matches_the_paper_in_numpy(normalization):
    layer = build_layer(DecoderLayer, normalization=normalization)
    output = numpy(layer(INPUTS, ENCODER_OUTPUT, source_mask=SOURCE_MASK))
    decoder = build_layer(Decoder, 2, normalization=normalization)
    decoded = numpy(decoder(INPUTS, ENCODER_OUTPUT, source_mask=SOURCE_MASK))
    for i, length in enumerate(LENGTHS):
        x = INPUTS[i].astype("float64")
        source = ENCODER_OUTPUT[i, :length].astype("float64")
        expected = paper_in_numpy.decoder_layer(layer, x, source)
        np.testing.assert_allclose(output[i], expected, rtol=1e-3, atol=1e-4)
        expected = paper_in_numpy.stack(
            decoder, x, paper_in_numpy.decoder_layer, source
        )
        np.testing.assert_allclose(decoded[i], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("changed", [0, 1, 3])
def test_decoder_ignores_later_tokens(changed):
    decoder = build_layer(Decoder, 2)
    expected = numpy(decoder(INPUTS, ENCODER_OUTPUT, source_mask=SOURCE_MASK))
    other = INPUTS.copy()
    other[:, changed] = 100
    output = numpy(decoder(other, ENCODER_OUTPUT, source_mask=SOURCE_MASK))
    np.testing.assert_array_equal(output[:, :changed], expected[:, :changed])
    assert (output[:, changed:] != expected[:, changed:]).any(axis=-1).all()


def test_decoder_ignores_source_padding():
    """The source has 6 positions and the target 4, so mixed-up masks would fail."""
    decoder = build_layer(Decoder, 2)
    expected = numpy(decoder(INPUTS, ENCODER_OUTPUT, source_mask=SOURCE_MASK))
    other = np.where(SOURCE_MASK[..., None], ENCODER_OUTPUT, 1e3).astype("float32")
    output = numpy(decoder(INPUTS, other, source_mask=SOURCE_MASK))
    np.testing.assert_array_equal(output, expected)
    for position in range(LENGTHS[0]):
        other = ENCODER_OUTPUT.copy()
        other[0, position] += 1
        output = numpy(decoder(INPUTS, other, source_mask=SOURCE_MASK))
        assert (output[0] != expected[0]).any(axis=-1).all()


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
