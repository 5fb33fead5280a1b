"""Transposition, and products with packed kernels, against NumPy.

A packed kernel is stored in contiguous blocks of columns. Its pieces are arrays of
blocks, of which a large kernel has several.
"""

import keras
import numpy as np
import pytest
from keras import ops
from layer_checks import numpy

from keras_transformer.numerics.matrices import (
    pack_kernel,
    packed_matmul,
    swap_middle_axes,
    unpack_kernel,
)

GENERATOR = np.random.default_rng(4)


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


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "bool"])
def test_swap_middle_axes_matches_numpy(dtype):
    x = (GENERATOR.normal(size=(2, 3, 4, 5)) * 8).round()
    found = swap_middle_axes(ops.cast(x, dtype))
    assert keras.backend.standardize_dtype(found.dtype) == dtype
    expected = numpy(ops.cast(x, dtype)).transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(numpy(found), expected)
