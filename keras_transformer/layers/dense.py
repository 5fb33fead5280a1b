"""Keras's `Dense` with one matrix product over all positions."""

import keras
from keras import ops


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


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dense(keras.layers.Dense):
    """`keras.layers.Dense` of `[..., width]` with fewer operations; see `by_rows`."""

    def call(self, inputs, training=None):
        """`[..., width]` to `[..., units]`."""
        return by_rows(super().call, inputs)

    def quantize(self, mode=None, type_check=True, config=None):
        """As `keras.layers.Dense`, which refuses what is derived from it."""
        return super().quantize(mode, type_check=False, config=config)
