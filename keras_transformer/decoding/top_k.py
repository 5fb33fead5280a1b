"""Block-wise top-k for large vocabularies."""

from keras import ops

from keras_transformer.numerics.indexing import gather, shape


def top_k(x, k):
    """Returns the `k` largest values of each row, largest first, and their indices.

    Each row is divided into blocks of equal width. The `k` largest values are in the
    `k` blocks with the largest maxima, so only these blocks are ranked. A maximum takes
    much less time than a top-k (on a CPU, about an eighth for 8,000 values). `x` is
    `[rows, size]` with a static size. The results are `[rows, k]`.
    """
    size = x.shape[1]
    width = _block_width(size, k)
    if width is None:
        values, indices = ops.top_k(x, k)
        return values, ops.cast(indices, "int32")
    num_blocks = size // width
    blocks = ops.reshape(x, (-1, num_blocks, width))
    _, best_blocks = ops.top_k(ops.max(blocks, axis=2), k)  # [rows, k]
    best_blocks = ops.cast(best_blocks, "int32")
    rows = ops.arange(shape(x)[0], dtype="int32")[:, None]
    chosen = gather(
        ops.reshape(x, (-1, width)), rows * num_blocks + best_blocks, axis=0
    )
    values, places = ops.top_k(ops.reshape(chosen, (-1, k * width)), k)
    places = ops.cast(places, "int32")
    blocks = gather(ops.reshape(best_blocks, (-1,)), rows * k + places // width, axis=0)
    return values, blocks * width + places % width


def _block_width(size, k):
    """Returns the block width for which `top_k` ranks the fewest values.

    `top_k` ranks the maxima of all blocks, and then the values of `k` blocks. If no
    width leaves fewer than `size // 4` values to rank, returns `None`.
    """
    num_ranked = {
        width: size // width + k * width
        for width in range(2, size // k + 1)
        if size % width == 0
    }
    width = min(num_ranked, key=num_ranked.get, default=None)
    return width if width is not None and num_ranked[width] < size // 4 else None
