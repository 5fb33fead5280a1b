"""Queries, keys and values of one product, as decoding makes them."""

import keras
import numpy as np
import pytest
from keras import ops
from layer_checks import numpy
from layer_checks import randomize

from keras_transformer.layers import MultiHeadAttention

X = np.random.default_rng(4).normal(size=(2, 6, 11)).astype("float32")


def built(*args, **kwargs):
    layer = MultiHeadAttention(*args, **kwargs)
    layer.build(X.shape, X.shape)
    randomize(layer)
    return layer


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("value_dim", [2, 5, None])
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_one_product_of_queries_keys_and_values(use_bias, value_dim, dtype):
    """The same as three, whatever their widths."""
    layer = built(*(3, 5, value_dim), use_bias=use_bias, dtype=dtype)
    x = ops.cast(X, layer.compute_dtype)
    kernel = layer.joined_kernel()
    assert kernel["kernel"].shape == (11, 3 * (5 + 5 + (value_dim or 5)))
    of_three, of_one = (
        layer.call_with_cache(x, layer.init_cache(2), 0, kernel=each)
        for each in (None, kernel)
    )
    tolerance = 1e-5 if dtype == "float32" else 0.05
    for three, one in zip(*map(keras.tree.flatten, (of_three, of_one)), strict=True):
        np.testing.assert_allclose(
            numpy(ops.cast(one, "float32")),
            numpy(ops.cast(three, "float32")),
            rtol=tolerance,
            atol=tolerance,
        )


def test_a_quantized_layer_joins_nothing():
    layer = built(3, 5)
    assert layer.joined_kernel() is not None
    layer.value_dense.quantize("int8")
    assert layer.joined_kernel() is None
