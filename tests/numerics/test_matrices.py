"""Matrices in blocks of columns."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.numerics.matrices import Dense
from keras_transformer.numerics.matrices import in_blocks
from keras_transformer.numerics.matrices import laid_out
from keras_transformer.numerics.matrices import product
from keras_transformer.numerics.matrices import whole

GENERATOR = np.random.default_rng(4)


@pytest.mark.parametrize(
    ("width", "columns", "blocks"),
    [
        *[
            (7, 64, [1]),
            (7, 128, [2]),
            (7, 1536, [24]),
            (7, 8000, [125]),
            (7, 300, [5]),
        ],
        # 2**17 numbers a piece or more, and 4 pieces at most.
        *[(512, 512, [4, 4]), (512, 511 * 64, [127, 128, 128, 128]), (511, 512, [8])],
    ],
)
def test_a_block_is_some_columns_in_one_piece(width, columns, blocks):
    kernel = GENERATOR.normal(size=(width, columns)).astype("float32")
    pieces = in_blocks(ops.convert_to_tensor(kernel))
    laid = [ops.convert_to_numpy(piece) for piece in pieces]
    size = columns // sum(blocks)
    assert [each.shape for each in laid] == [(count, width, size) for count in blocks]
    np.testing.assert_array_equal(np.concatenate(np.concatenate(laid), axis=1), kernel)
    np.testing.assert_array_equal(whole(pieces), kernel)
    rows = GENERATOR.normal(size=(4, width)).astype("float32")
    found = product(ops.convert_to_tensor(rows), pieces)
    np.testing.assert_allclose(found, rows @ kernel, rtol=1e-4, atol=1e-6 * width)


@pytest.mark.parametrize("columns", [1, 31, 7993])
def test_columns_that_make_no_blocks_stay_as_they_are(columns):
    kernel = ops.ones((3, columns))
    assert in_blocks(kernel) is kernel
    assert whole(kernel) is kernel


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
    with laid_out([dense], [(ops.zeros((2, 7, 64)),)]):
        nothing = dense(x)
    # Else the layer would have multiplied by its own.
    zeros = ops.zeros_like(expected)
    if use_bias:
        zeros = zeros + dense.bias
    np.testing.assert_array_equal(nothing, ops.relu(zeros) if activation else zeros)
    np.testing.assert_array_equal(dense(x), expected)
