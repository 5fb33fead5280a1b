"""Matrices in blocks of columns."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.dense import Dense
from keras_transformer.layers.dense import in_blocks
from keras_transformer.layers.dense import laid_out
from keras_transformer.layers.dense import product

GENERATOR = np.random.default_rng(4)


@pytest.mark.parametrize(
    ("columns", "blocks"), [(64, 1), (128, 2), (1536, 24), (8000, 125), (300, 5)]
)
def test_a_block_is_some_columns_in_one_piece(columns, blocks):
    kernel = GENERATOR.normal(size=(7, columns)).astype("float32")
    laid = ops.convert_to_numpy(in_blocks(ops.convert_to_tensor(kernel)))
    assert laid.shape == (blocks, 7, columns // blocks)
    np.testing.assert_array_equal(np.concatenate(list(laid), axis=1), kernel)
    rows = GENERATOR.normal(size=(4, 7)).astype("float32")
    found = product(ops.convert_to_tensor(rows), ops.convert_to_tensor(laid))
    np.testing.assert_allclose(found, rows @ kernel, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("columns", [1, 31, 7993])
def test_columns_that_make_no_blocks_stay_as_they_are(columns):
    kernel = ops.ones((3, columns))
    assert in_blocks(kernel) is kernel


@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("use_bias", [False, True])
def test_a_layer_multiplies_by_what_is_laid_out_for_it(activation, use_bias):
    dense, other = (
        Dense(
            128,
            activation=activation,
            use_bias=use_bias,
            bias_initializer="random_normal",
        )
        for _ in range(2)
    )
    x = GENERATOR.normal(size=(2, 3, 7)).astype("float32")
    expected, of_other = dense(x), other(x)
    with laid_out([dense], [in_blocks(dense.kernel)]):
        np.testing.assert_allclose(dense(x), expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(other(x), of_other)
    with laid_out([dense], [ops.zeros((2, 7, 64))]):
        nothing = dense(x)
    # Else the layer would have multiplied by its own.
    zeros = ops.zeros_like(expected)
    if use_bias:
        zeros = zeros + dense.bias
    np.testing.assert_array_equal(nothing, ops.relu(zeros) if activation else zeros)
    np.testing.assert_array_equal(dense(x), expected)
