"""`Dense` against Keras's layer. `tests/test_quantized.py` saves quantized layers."""

import keras
import numpy as np
from layer_checks import check_layer, numpy, randomize

from keras_transformer.layers.base import Dense

GENERATOR = np.random.default_rng(4)


def test_dense_passes_all_layer_checks():
    x = GENERATOR.normal(size=(2, 5, 7)).astype("float32")
    check_layer(Dense, {"units": 4}, {"inputs": x}, (2, 5, 4), 2)


def test_dense_quantizes_like_keras():
    x = GENERATOR.normal(size=(2, 3, 16)).astype("float32")
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
