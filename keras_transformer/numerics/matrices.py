"""Keras's `Dense` with one matrix product over all positions."""

import contextlib
import contextvars
import itertools

import keras
from keras import ops

# Columns of a block, about.
BLOCK = 64
# Pieces of a large matrix at most, and numbers of each at least.
PIECES, LEAST = 4, 2**17
_LAID_OUT = contextvars.ContextVar("laid_out", default=None)


def by_rows(function, x):
    """`function` of `x` as one matrix, each of its last axes a row.

    Keras multiplies an array of three axes by a matrix through a dozen operations on
    shapes, which cost more than the product where there are few rows, as in decoding.

    Args:
        function: From `[rows, width]` to `[rows, another width]`.
        x: `[..., width]`, the width known.

    Returns:
        `[..., another width]`.
    """
    if len(x.shape) == 2:
        return function(x)
    result = function(ops.reshape(x, (-1, x.shape[-1])))
    leading = x.shape[1:-1]
    # Where only the first axis is unknown, nothing has to be computed to restore it.
    first = -1 if None not in leading else ops.shape(x)[0]
    if None in leading:
        leading = ops.shape(x)[1:-1]
    return ops.reshape(result, (first, *leading, result.shape[-1]))


def in_blocks(kernel):
    """A matrix cut into blocks of columns, one after the other in memory.

    Few rows are multiplied by a large matrix as fast as that is read. Of a whole matrix
    XLA's product reads a few columns at a time, all rows of them; a block of them lies
    in one piece, which is read at the memory's full rate. One product is one thread's;
    those of a large matrix's pieces run side by side.

    Args:
        kernel: `[width, columns]`, sizes known.

    Returns:
        Tuple of pieces, `[blocks, width, columns of a block]`; the matrix itself where
        no number of columns near `BLOCK` divides it.
    """
    width, columns = kernel.shape
    sizes = [size for size in range(BLOCK // 2, 2 * BLOCK) if columns % size == 0]
    if not sizes:
        return kernel
    size = min(sizes, key=lambda size: abs(size - BLOCK))
    count = columns // size
    blocks = ops.transpose(ops.reshape(kernel, (width, count, size)), (1, 0, 2))
    pieces = max(1, min(PIECES, count, width * columns // LEAST))
    ends = [count * piece // pieces for piece in range(pieces + 1)]
    return tuple(blocks[first:last] for first, last in itertools.pairwise(ends))


def whole(kernel):
    """The matrix that `in_blocks` has cut, `[width, columns]`."""
    if not isinstance(kernel, (tuple, list)):
        return kernel
    blocks = ops.concatenate(kernel, axis=0)
    count, width, size = blocks.shape
    return ops.reshape(ops.transpose(blocks, (1, 0, 2)), (width, count * size))


def product(rows, kernel):
    """`rows`, `[rows, width]`, by a matrix, or `in_blocks` of it: `[rows, columns]`."""
    if not isinstance(kernel, (tuple, list)):
        return ops.matmul(rows, kernel)
    products = []
    for piece in kernel:
        blocks, _, size = piece.shape
        each = ops.matmul(ops.broadcast_to(rows, (blocks, *ops.shape(rows))), piece)
        each = ops.reshape(ops.transpose(each, (1, 0, 2)), (-1, blocks * size))
        products.append(each)
    return products[0] if len(products) == 1 else ops.concatenate(products, axis=1)


@contextlib.contextmanager
def laid_out(layers, kernels):
    """Within it, these `Dense` layers multiply by these kernels, see `product`."""
    pairs = zip(map(id, layers), kernels, strict=True)
    token = _LAID_OUT.set({**(_LAID_OUT.get() or {}), **dict(pairs)})
    try:
        yield
    finally:
        _LAID_OUT.reset(token)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dense(keras.layers.Dense):
    """`keras.layers.Dense` of `[..., width]` with fewer operations; see `by_rows`."""

    def call(self, inputs, training=None):
        """`[..., width]` to `[..., units]`."""
        kernel = (_LAID_OUT.get() or {}).get(id(self))
        if kernel is None:
            return by_rows(super().call, inputs)
        return by_rows(lambda rows: self._with_bias(product(rows, kernel)), inputs)

    def _with_bias(self, outputs):
        if self.bias is not None:
            outputs = outputs + ops.cast(self.bias, outputs.dtype)
        return outputs if self.activation is None else self.activation(outputs)

    def quantize(self, mode=None, type_check=True, config=None):
        """As `keras.layers.Dense`, which refuses what is derived from it."""
        return super().quantize(mode, type_check=False, config=config)
