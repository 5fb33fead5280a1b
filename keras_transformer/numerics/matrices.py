"""Matrix products with few rows, as in decoding, and kernels packed for them."""

import itertools

import keras
from keras import ops

# A packed kernel consists of blocks of about `BLOCK_COLUMNS` columns. They are grouped
# into at most `MAX_PIECES` pieces, which have at least `MIN_PIECE_SIZE` elements on
# average. A smaller kernel is one piece.
BLOCK_COLUMNS = 64
MAX_PIECES, MIN_PIECE_SIZE = 4, 2**17


def apply_flattened(function, x):
    """Flattens the leading axes of `x` to rows, applies `function`, and restores them.

    To multiply a 3D array by a matrix, Keras adds about six operations more than this
    function, which enlarge exported graphs.

    Args:
        function: Function from `[rows, width]` to `[rows, new_width]`.
        x: `[..., width]` with a static width.

    Returns:
        `[..., new_width]`.
    """
    if len(x.shape) == 2:
        return function(x)
    result = function(ops.reshape(x, (-1, x.shape[-1])))
    leading = x.shape[1:-1]
    # If all leading axes but the first are static and not empty, `reshape` infers the
    # first without another operation.
    if None in leading or 0 in leading:
        first, *leading = ops.shape(x)[:-1]
    else:
        first = -1
    return ops.reshape(result, (first, *leading, result.shape[-1]))


def pack_kernel(kernel):
    """Packs a kernel into contiguous blocks of columns.

    With few rows, the product is memory-bound: XLA reads an unpacked kernel in strided
    slices, and a packed one at full bandwidth. XLA runs each product on one thread. So
    a large kernel is divided into pieces, whose products run in parallel.

    Args:
        kernel: `[width, columns]` with static sizes.

    Returns:
        Tuple of pieces `[blocks, width, block_columns]`, or the kernel itself if its
        number of columns has no divisor near `BLOCK_COLUMNS`.
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
    """Returns `rows @ kernel`, `[rows, columns]`, for a kernel that may be packed.

    Args:
        rows: `[rows, width]`.
        kernel: Result of `pack_kernel`, or `[width, columns]`.
    """
    if not isinstance(kernel, (tuple, list)):
        return ops.matmul(rows, kernel)
    products = []
    for piece in kernel:
        blocks, _, size = piece.shape
        product = ops.matmul(ops.broadcast_to(rows, (blocks, *ops.shape(rows))), piece)
        product = ops.reshape(ops.transpose(product, (1, 0, 2)), (-1, blocks * size))
        products.append(product)
    return products[0] if len(products) == 1 else ops.concatenate(products, axis=1)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dense(keras.layers.Dense):
    """`keras.layers.Dense` that flattens leading axes with `apply_flattened`.

    Arguments, weights and results match `keras.layers.Dense`.
    """

    def call(self, inputs, training=None):
        """Projects `[..., width]` to `[..., units]`."""
        return apply_flattened(super().call, inputs)

    def quantize(self, mode=None, type_check=True, config=None):
        """Like `keras.layers.Dense.quantize`, which refuses subclasses."""
        return super().quantize(mode, type_check=False, config=config)

    def check_quantization(self):
        """Checks that the weights, once saved, can be loaded again.

        Raises:
            ValueError: If the layer is quantized in any way other than
                `quantize("int8")`.
        """
        mode, config = self.quantization_mode, self.quantization_config
        default = keras.quantizers.Int8QuantizationConfig()
        is_default = config is None or config.get_config() == default.get_config()
        if mode is not None and not (mode == "int8" and is_default):
            raise ValueError(
                'A quantized model can only be saved after `quantize("int8")` without '
                f"a `config`. Received: mode={mode!r}."
            )

    def save_own_variables(self, store):
        """Like `keras.layers.Dense.save_own_variables`, after `check_quantization`.

        Raises:
            ValueError: If the layer is quantized in any way other than
                `quantize("int8")`.
        """
        self.check_quantization()
        super().save_own_variables(store)

    def load_own_variables(self, store):
        """Like `keras.layers.Dense.load_own_variables`, but also loads int8 weights.

        If the stored weights are int8, this layer is quantized first, because the
        config of the layer that contains it does not record the quantization.
        """
        is_int8 = "0" in store and store["0"].dtype == "int8"
        if self.built and self.quantization_mode is None and is_int8:
            self.quantize("int8")
        super().load_own_variables(store)
