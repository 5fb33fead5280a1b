"""Matrix products, with few rows as in decoding, their kernels, and a transposition."""

import itertools

import keras
from keras import ops

from keras_transformer.numerics.indexing import shape, view

# A packed kernel consists of blocks of about `BLOCK_COLUMNS` columns. They are grouped
# into at most `MAX_PIECES` pieces, which have at least `MIN_PIECE_SIZE` elements on
# average. A smaller kernel is one piece.
BLOCK_COLUMNS = 64
MAX_PIECES, MIN_PIECE_SIZE = 4, 2**17


def pack_kernel(kernel):
    """Packs a kernel into contiguous blocks of columns.

    With few rows, the product is memory-bound: XLA reads an unpacked kernel in strided
    slices, and a packed one at full bandwidth. XLA runs each product on one thread. So
    a large kernel is divided into pieces, whose products run in parallel.

    The kernel is `[width, columns]`, with static sizes. Returns a tuple of pieces
    `[blocks, width, block_columns]`, or the kernel itself if its number of columns has
    no divisor near `BLOCK_COLUMNS`.
    """
    width, columns = kernel.shape
    sizes = [
        size
        for size in range(BLOCK_COLUMNS // 2, 2 * BLOCK_COLUMNS)
        if columns % size == 0
    ]
    if not sizes:
        return kernel
    size = min(sizes, key=lambda size: abs(size - BLOCK_COLUMNS))
    count = columns // size
    blocks = ops.transpose(ops.reshape(kernel, (width, count, size)), (1, 0, 2))
    num_pieces = max(1, min(MAX_PIECES, count, width * columns // MIN_PIECE_SIZE))
    ends = [count * piece // num_pieces for piece in range(num_pieces + 1)]
    return tuple(blocks[first:last] for first, last in itertools.pairwise(ends))


def unpack_kernel(kernel):
    """Returns the `[width, columns]` kernel that `pack_kernel` packed."""
    if not isinstance(kernel, (tuple, list)):
        return kernel
    blocks = ops.concatenate(kernel, axis=0)
    count, width, size = blocks.shape
    return ops.reshape(ops.transpose(blocks, (1, 0, 2)), (width, count * size))


def packed_matmul(rows, kernel):
    """Returns `rows @ kernel`, `[rows, columns]`, for a kernel that may be packed."""
    if not isinstance(kernel, (tuple, list)):
        return ops.matmul(rows, kernel)
    products = []
    for piece in kernel:
        blocks, _, size = piece.shape
        product = ops.matmul(ops.broadcast_to(rows, (blocks, *ops.shape(rows))), piece)
        product = ops.reshape(ops.transpose(product, (1, 0, 2)), (-1, blocks * size))
        products.append(product)
    return products[0] if len(products) == 1 else ops.concatenate(products, axis=1)


def project(x, kernel):
    """Returns `x @ kernel`, `[..., columns]`, for a kernel `[width, columns]`.

    Keras would call `tf.tensordot`, which adds three times as many operations to a
    graph.
    """
    if keras.config.backend() != "tensorflow" or len(x.shape) == 2:
        return ops.matmul(x, kernel)
    width, columns = kernel.shape
    rows = ops.matmul(ops.reshape(x, (-1, width)), kernel)
    return ops.reshape(rows, (*shape(x)[:-1], columns))


def swap_middle_axes(x):
    """Transposes `[a, b, c, d]` to `[a, c, b, d]`, without a gradient.

    Floats are viewed as integers first: for small float tensors, TensorFlow calls
    oneDNN, whose overhead exceeds the work.
    """
    bits = {"float32": "int32", "float16": "int16", "bfloat16": "int16"}
    dtype = keras.backend.standardize_dtype(x.dtype)
    if dtype not in bits:
        return ops.transpose(x, (0, 2, 1, 3))
    return view(ops.transpose(view(x, bits[dtype]), (0, 2, 1, 3)), dtype)
