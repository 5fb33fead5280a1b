"""`FeedForward` against the paper's equation 2 in NumPy."""

import numpy as np
import paper_in_numpy
from layer_checks import check_layer, numpy, randomize

from keras_transformer.layers import FeedForward

INPUTS = np.random.default_rng(1).normal(size=(2, 5, 7)).astype("float32")


def test_feed_forward_passes_all_layer_checks():
    check_layer(FeedForward, {"d_ff": 13}, {"inputs": INPUTS}, (2, 5, 7), 4)


def test_feed_forward_matches_equation_2():
    layer = FeedForward(13)
    layer.build(INPUTS.shape)
    randomize(layer)
    for output, row in zip(numpy(layer(INPUTS)), INPUTS, strict=True):
        expected = paper_in_numpy.feed_forward(layer, row)
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


def test_feed_forward_applies_activation():
    layer = FeedForward(13, activation="tanh")
    layer.build(INPUTS.shape)
    randomize(layer)
    inner, outer = layer.inner_dense, layer.outer_dense
    hidden = np.tanh(INPUTS @ numpy(inner.kernel) + numpy(inner.bias))
    expected = hidden @ numpy(outer.kernel) + numpy(outer.bias)
    np.testing.assert_allclose(numpy(layer(INPUTS)), expected, rtol=1e-4, atol=1e-5)
    assert FeedForward.from_config(layer.get_config()).activation is layer.activation
