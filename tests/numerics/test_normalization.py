"""`LayerNormalization` against Keras's layer."""

import keras
import numpy as np
import pytest
from keras import ops
from layer_checks import numpy

from keras_transformer.layers import LayerNormalization

X = np.random.default_rng(1).normal(size=(3, 5, 16)).astype("float32") * 4 + 2


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"center": False},
        {"scale": False},
        {"epsilon": 0.5},
        {"axis": -2},
        {"axis": [1, 2]},
        {"axis": 2},
        {"dtype": "float64"},
        {"dtype": "mixed_bfloat16"},
        {"dtype": "mixed_float16"},
    ],
)
def test_normalization_matches_keras(kwargs):
    if keras.backend.backend() == "torch" and kwargs.get("axis") == -2:
        pytest.skip("on PyTorch, Keras's layer normalizes last axes only")
    ours, theirs = (
        LayerNormalization(**kwargs),
        keras.layers.LayerNormalization(**kwargs),
    )
    rng = np.random.default_rng(2)
    for layer in (ours, theirs):
        layer.build(X.shape)
    for mine, other in zip(ours.weights, theirs.weights, strict=True):
        value = rng.normal(size=mine.shape)
        mine.assign(value)
        other.assign(value)
    np.testing.assert_allclose(
        numpy(ours(X)).astype("float32"),
        numpy(theirs(X)).astype("float32"),
        rtol=1e-2 if "mixed" in kwargs.get("dtype", "") else 1e-5,
        atol=1e-2 if "mixed" in kwargs.get("dtype", "") else 1e-5,
    )


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="gradients by GradientTape"
)
@pytest.mark.parametrize("training", [False, True])
def test_normalization_gradients_match_keras(training):
    import tensorflow as tf

    rng = np.random.default_rng(3)
    weights = tf.constant(rng.normal(size=X.shape), tf.float32)
    found = []
    for cls in (LayerNormalization, keras.layers.LayerNormalization):
        layer = cls(epsilon=1e-6)
        layer.build(X.shape)
        layer.gamma.assign(np.linspace(0.5, 2, 16))
        x = tf.constant(X)
        with tf.GradientTape() as tape:
            tape.watch(x)
            options = {"training": training} if cls is LayerNormalization else {}
            loss = tf.reduce_sum(layer(x, **options) * weights)
        found.append(tape.gradient(loss, [x, layer.gamma.value, layer.beta.value]))
    for mine, other in zip(*found, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_normalization_is_exact_for_large_means():
    """The variance is computed from the centered row, not as a difference of sums."""
    layer = LayerNormalization(epsilon=1e-6)
    layer.build(X.shape)
    np.testing.assert_allclose(numpy(layer(X + 1000)), numpy(layer(X)), atol=2e-3)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="Keras computes means of float64 in float32 on JAX and PyTorch",
)
def test_normalization_computes_in_float64():
    layer = LayerNormalization(epsilon=1e-6, dtype="float64")
    layer.build(X.shape)
    x = X.astype("float64")
    centered = x - x.mean(-1, keepdims=True)
    expected = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-6)
    found = ops.convert_to_numpy(layer(x))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
