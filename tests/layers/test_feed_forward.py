"""`FeedForward` and its `Dense` layers. `tests/test_quantized.py` saves them."""

import keras
import numpy as np
from layer_checks import numpy, randomize

from keras_transformer.layers import FeedForward
from keras_transformer.layers.base import Dense

INPUTS = np.random.default_rng(1).normal(size=(2, 5, 7)).astype("float32")


def test_feed_forward_applies_activation():
    layer = FeedForward(13, activation="tanh")
    layer.build(INPUTS.shape)
    randomize(layer)
    inner, outer = layer.inner_dense, layer.outer_dense
    hidden = np.tanh(INPUTS @ numpy(inner.kernel) + numpy(inner.bias))
    expected = hidden @ numpy(outer.kernel) + numpy(outer.bias)
    np.testing.assert_allclose(numpy(layer(INPUTS)), expected, rtol=1e-4, atol=1e-5)
    assert FeedForward.from_config(layer.get_config()).activation is layer.activation


def test_dense_quantizes_like_keras():
    x = np.random.default_rng(4).normal(size=(2, 3, 16)).astype("float32")
    ours, theirs = Dense(8), keras.layers.Dense(8)
    for layer in (ours, theirs):
        layer.build(x.shape)
    randomize(ours)
    theirs.set_weights(ours.get_weights())
    exact = numpy(ours(x))
    for layer in (ours, theirs):
        layer.quantize("int8")
    found = numpy(ours(x))
    np.testing.assert_allclose(found, numpy(theirs(x)), rtol=1e-5, atol=1e-5)
    assert 0 < np.abs(found - exact).max() < 0.05 * np.abs(exact).max()
