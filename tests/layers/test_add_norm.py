"""`AddNorm`, the residual connection with normalization, against NumPy."""

import numpy as np
import paper_in_numpy
import pytest
from layer_checks import numpy, randomize

from keras_transformer.layers import AddNorm

GENERATOR = np.random.default_rng(2)
INPUTS = GENERATOR.normal(size=(2, 5, 7)).astype("float32") * 3 + 1
SUBLAYER_OUTPUT = GENERATOR.normal(size=(2, 5, 7)).astype("float32")


def build_layer(**kwargs):
    layer = AddNorm(**kwargs)
    layer.build(INPUTS.shape)
    randomize(layer)
    return layer


@pytest.mark.parametrize("scale", [1, 1e-3])
@pytest.mark.parametrize(
    ("kwargs", "epsilon"), [({}, 1e-6), ({"layer_norm_epsilon": 0.5}, 0.5)]
)
def test_add_norm_post_matches_formula(scale, kwargs, epsilon):
    """`LayerNorm(x + Sublayer(x))`, with mean and variance over the last axis.

    With scale 1e-3, the variance is so small that even the epsilon 1e-6 matters.
    """
    layer = build_layer(**kwargs)
    x, y = (scale * part for part in (INPUTS, SUBLAYER_OUTPUT))
    expected = paper_in_numpy.layer_norm(
        layer.layer_norm, (x + y).astype("float64"), epsilon
    )
    np.testing.assert_allclose(numpy(layer(x, y)), expected, rtol=1e-3, atol=1e-5)
    found = layer.apply(x, lambda received: received - x + y)
    np.testing.assert_allclose(numpy(found), expected, rtol=1e-3, atol=1e-5)


def test_add_norm_pre_matches_formula():
    """`x + Sublayer(LayerNorm(x))`, for a sublayer that doubles its input."""
    layer = build_layer(normalization="pre")
    normalized = paper_in_numpy.layer_norm(layer.layer_norm, INPUTS.astype("float64"))
    found = numpy(layer.apply(INPUTS, lambda received: 2 * received))
    np.testing.assert_allclose(found, INPUTS + 2 * normalized, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(
        numpy(layer(INPUTS, SUBLAYER_OUTPUT)), INPUTS + SUBLAYER_OUTPUT
    )


def test_add_norm_drops_sublayer_output_only():
    """Output units are 0 or divided by 1 - rate; the residual input does not change."""
    layer = build_layer(normalization="pre", dropout=0.25)
    ones = np.ones_like(INPUTS)
    added = numpy(layer.apply(INPUTS, lambda _: ones, training=True)) - INPUTS
    dropped = np.isclose(added, 0, atol=1e-5)
    assert 0 < dropped.mean() < 0.6
    np.testing.assert_allclose(added[~dropped], 4 / 3, rtol=1e-5)
