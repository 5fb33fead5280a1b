"""`Dense` and products with packed kernels, against NumPy and Keras.

A packed kernel is stored in contiguous blocks of columns. Its pieces are arrays of
blocks, of which a large kernel has several.
"""

import keras
import numpy as np
import pytest
from keras import ops
from layer_checks import check_layer
from layer_checks import numpy
from layer_checks import randomize

from keras_transformer.numerics.matrices import Dense
from keras_transformer.numerics.matrices import apply_flattened
from keras_transformer.numerics.matrices import pack_kernel
from keras_transformer.numerics.matrices import packed_matmul
from keras_transformer.numerics.matrices import unpack_kernel

GENERATOR = np.random.default_rng(4)


@pytest.mark.parametrize("shape", [(5, 7), (2, 5, 7), (2, 3, 4, 7), (0, 5, 7)])
def test_apply_flattened_passes_a_matrix_and_restores_the_axes(shape):
    x = GENERATOR.normal(size=shape).astype("float32")
    matrix = GENERATOR.normal(size=(7, 3)).astype("float32")
    ranks = []

    def multiply(rows):
        ranks.append(len(rows.shape))
        return ops.matmul(rows, matrix)

    found = numpy(apply_flattened(multiply, ops.array(x)))
    np.testing.assert_allclose(found, x @ matrix, rtol=1e-5, atol=1e-5)
    assert ranks == [2]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="traces a graph")
@pytest.mark.parametrize(
    "static", [(None, None, 7), (None, 4, 7), (2, None, 7), (None, None, None, 7)]
)
def test_apply_flattened_restores_unknown_axes(static):
    import tensorflow as tf

    shape = [size or 3 + axis for axis, size in enumerate(static)]
    x = GENERATOR.normal(size=shape).astype("float32")

    @tf.function(input_signature=[tf.TensorSpec(static)], autograph=False)
    def double(x):
        return apply_flattened(lambda rows: 2.0 * rows, x)

    np.testing.assert_array_equal(double(x), 2 * x)


@pytest.mark.parametrize(
    ("width", "columns"),
    [(7, 64), (7, 128), (7, 300), (7, 8000), (512, 512), (512, 2048), (511, 512)],
)
def test_pack_kernel_stores_contiguous_column_blocks(width, columns):
    kernel = GENERATOR.normal(size=(width, columns)).astype("float32")
    pieces = [numpy(piece) for piece in pack_kernel(ops.array(kernel))]
    # Together, the blocks contain the kernel's columns in order.
    blocks = [block for piece in pieces for block in piece]
    np.testing.assert_array_equal(np.concatenate(blocks, axis=1), kernel)
    assert len({block.shape for block in blocks}) == 1
    # XLA reads blocks of this width at full bandwidth.
    assert 32 <= blocks[0].shape[1] < 128
    # A kernel with at least twice `MIN_PIECE_SIZE` elements, 2**17, has several pieces
    # of similar size. A smaller kernel has one.
    sizes = [piece.size for piece in pieces]
    assert (len(pieces) > 1) == (width * columns >= 2**18)
    assert len(pieces) <= 4 and max(sizes) <= 2 * min(sizes)


@pytest.mark.parametrize("columns", [64, 300, 1536, 31, 7993])
@pytest.mark.parametrize("width", [7, 512])
def test_packed_kernel_gives_the_same_products(width, columns):
    kernel = GENERATOR.normal(size=(width, columns)).astype("float32")
    packed = pack_kernel(ops.array(kernel))
    np.testing.assert_array_equal(numpy(unpack_kernel(packed)), kernel)
    for num_rows in (1, 4):
        rows = GENERATOR.normal(size=(num_rows, width)).astype("float32")
        for each in (packed, ops.array(kernel)):
            found = numpy(packed_matmul(ops.array(rows), each))
            expected = rows.astype("float64") @ kernel
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6 * width)


@pytest.mark.parametrize("columns", [1, 31, 7993])
def test_pack_kernel_leaves_indivisible_columns_unpacked(columns):
    kernel = ops.ones((3, columns))
    assert pack_kernel(kernel) is kernel
    assert unpack_kernel(kernel) is kernel


def test_dense_passes_all_layer_checks():
    x = GENERATOR.normal(size=(2, 5, 7)).astype("float32")
    check_layer(Dense, {"units": 4}, {"inputs": x}, (2, 5, 4), 2)


@pytest.mark.parametrize("shape", [(3, 7), (2, 3, 7), (2, 3, 4, 7)])
@pytest.mark.parametrize("options", [{}, {"activation": "relu"}, {"use_bias": False}])
def test_dense_matches_keras(shape, options):
    x = GENERATOR.normal(size=shape).astype("float32")
    ours, theirs = Dense(5, **options), keras.layers.Dense(5, **options)
    for layer in (ours, theirs):
        layer.build(shape)
    randomize(ours)
    theirs.set_weights(ours.get_weights())
    assert {**ours.get_config(), "name": 0} == {**theirs.get_config(), "name": 0}
    np.testing.assert_allclose(numpy(ours(x)), numpy(theirs(x)), rtol=1e-5, atol=1e-5)


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
