"""`PositionalEncoding` against the formulas of the paper's section 3.5."""

import math

import numpy as np
import paper_in_numpy
import pytest
from keras import ops
from layer_checks import numpy

from keras_transformer.layers import MultiHeadAttention, PositionalEncoding
from keras_transformer.layers.positional_encoding import rotate

INPUTS = np.random.default_rng(1).normal(size=(2, 5, 6)).astype("float32")
LEARNED = {"kind": "learned", "max_length": 11}


def table(length, d_model, layer=None, start_index=0):
    """Returns the encodings `[length, d_model]` that a layer adds to zeros."""
    layer = PositionalEncoding() if layer is None else layer
    return numpy(
        layer(np.zeros((1, length, d_model), "float32"), start_index=start_index)
    )[0]


def learned(d_model=6):
    """Returns a layer with learned positions, and its table `[11, d_model]`."""
    layer = PositionalEncoding(**LEARNED)
    layer.build((None, None, d_model))
    rows = np.arange(11 * d_model, dtype="float32").reshape(11, d_model)
    layer.positions.assign(rows)
    return layer, rows


def test_positions_match_hand_calculation():
    """With d_model 4, positions are divided by 1 and by 10000^(2/4) = 100."""
    expected = [
        [0, 1, 0, 1],
        [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)],
    ]
    np.testing.assert_allclose(table(2, 4), expected, atol=1e-7)


@pytest.mark.parametrize("d_model", [1, 7, 12])
def test_positions_match_closed_form(d_model):
    expected = paper_in_numpy.positional_encoding(31, d_model)
    np.testing.assert_allclose(table(31, d_model), expected, atol=1e-5)


@pytest.mark.parametrize("offset", [1, 5, 40, -3])
def test_shifted_positions_are_a_linear_function(offset):
    """Section 3.5: one matrix maps PE(pos) to PE(pos + k) for every position.

    It rotates each sine and its cosine: sin(a + b) = sin a cos b + cos a sin b.
    """
    matrix = np.zeros((12, 12))
    for i in range(0, 12, 2):
        angle = offset / 10000 ** (i / 12)
        sine, cosine = math.sin(angle), math.cos(angle)
        matrix[i : i + 2, i : i + 2] = [[cosine, sine], [-sine, cosine]]
    encoding = table(200, 12)
    positions = np.arange(60, 160)
    np.testing.assert_allclose(
        encoding[positions] @ matrix.T, encoding[positions + offset], atol=1e-5
    )


@pytest.mark.parametrize("start", [0, 1, 7, 499])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_positions_begin_at_start_index(start, as_tensor):
    start_index = ops.convert_to_tensor(start, "int32") if as_tensor else start
    np.testing.assert_allclose(
        table(3, 10, start_index=start_index), table(503, 10)[start : start + 3]
    )


def test_positions_are_exact_in_bfloat16_at_position_500():
    """bfloat16 would round position 501 to 500, and angles even more.

    Only the results may be rounded: bfloat16 numbers below 1 differ by up to 2**-8.
    """
    layer = PositionalEncoding(dtype="mixed_bfloat16")
    expected = paper_in_numpy.positional_encoding(502, 8)
    difference = np.abs(table(502, 8, layer) - expected)
    assert difference[500:].max() <= 2**-8
    assert difference.max() <= 2**-8


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_positions_round_the_sum_once(kind):
    """Between 2 and 4, bfloat16 differs from the float32 sum by at most 1/128."""
    layer = PositionalEncoding(kind, max_length=101, dtype="mixed_bfloat16")
    layer.build((None, None, 32))
    rows = paper_in_numpy.positional_encoding(101, 32)
    if kind == "learned":
        layer.positions.assign(rows)
    output = numpy(layer(ops.full((1, 101, 32), 3.0, "bfloat16")))[0]
    assert np.abs(output - (3 + rows)).max() <= 1 / 128 + 1e-5


def test_learned_positions_are_rows_of_the_table():
    layer, rows = learned()
    np.testing.assert_allclose(numpy(layer(INPUTS)), INPUTS + rows[:5], rtol=1e-6)
    np.testing.assert_array_equal(table(4, 6, layer, 3), rows[3:7])
    start = ops.convert_to_tensor(10, "int32")
    np.testing.assert_array_equal(table(1, 6, layer, start), rows[10:])


def test_learned_positions_start_with_deviation_of_embeddings():
    layer = PositionalEncoding("learned", max_length=503)
    layer.build((None, None, 101))
    np.testing.assert_allclose(numpy(layer.positions).std(), 101**-0.5, rtol=0.05)


def test_learned_positions_end_at_max_length():
    layer, rows = learned()
    assert table(11, 6, layer).shape == rows.shape
    with pytest.raises(ValueError, match="max_length=11, input length=12"):
        table(12, 6, layer)
    # If decoding continues beyond `max_length`, positions repeat the last row.
    np.testing.assert_array_equal(table(2, 6, layer, 10), rows[[10, 10]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "none"}, r"`kind` must be .*\. Received: 'none'"),
        ({"timescales": "other"}, r"`timescales` must be .*\. Received: 'other'"),
        ({"kind": "learned"}, r"`max_length` of at least 1\. Received: None"),
        ({**LEARNED, "max_length": 0}, r"`max_length` of at least 1\. Received: 0"),
    ],
)
def test_positions_reject_invalid_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        PositionalEncoding(**options)


def test_rotation_multiplies_pairs_as_complex_numbers():
    x = np.random.default_rng(8).normal(size=(5, 12)).astype("float32")
    pairs = x[:, 0::2] + 1j * x[:, 1::2]
    angles = np.arange(5)[:, None] * 10000.0 ** (-np.arange(0, 12, 2) / 12)
    pairs *= np.exp(1j * angles)
    expected = np.stack([pairs.real, pairs.imag], axis=-1).reshape(5, 12)
    found = numpy(rotate(x, np.arange(5, dtype="int32")))
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["rotary", "relative"])
def test_positions_in_attention_depend_only_on_distance(kind):
    """If the sequence begins later, the scores of its tokens among each other stay."""
    layer = MultiHeadAttention(2, 6, positions=kind, max_distance=4)
    x = np.random.default_rng(6).normal(size=(1, 9, 12)).astype("float32")
    layer.build(x.shape, x.shape)
    mask = np.ones((1, 13, 13), bool)
    mask[..., :4] = False
    later = np.concatenate([np.ones((1, 4, 12), "float32"), x], axis=1)
    expected = layer(x, x, return_attention_scores=True)
    found = layer(later, later, attention_mask=mask, return_attention_scores=True)
    np.testing.assert_allclose(numpy(found[0])[:, 4:], expected[0], atol=1e-5)
    np.testing.assert_allclose(numpy(found[1])[..., 4:, 4:], expected[1], atol=1e-5)
    # The order matters, as it does not without positions.
    reverse = numpy(layer(x[:, ::-1], x[:, ::-1]))[:, ::-1]
    assert np.abs(reverse - expected[0]).max() > 0.01
