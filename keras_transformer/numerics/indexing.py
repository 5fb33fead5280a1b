"""Rows, sizes and views of tensors, by fewer operations of TensorFlow than Keras needs.

Tracing a search takes a millisecond for each operation, before the first translation.
"""

import keras
from keras import ops


def gather(x, indices, axis=0):
    """Returns `ops.take(x, indices, axis)`, for indices that are not negative."""
    if keras.config.backend() != "tensorflow":
        return ops.take(x, indices, axis=axis)
    import tensorflow as tf

    return tf.gather(x, indices, axis=axis)


def gather_each(x, indices):
    """Gathers `indices`, int32 `[batch, k]`, from axis 2 of `x`, `[batch, n, m, ...]`.

    Each sentence of the batch has its own indices, which are not negative.
    """
    if keras.config.backend() != "tensorflow":
        axes = (1,) * (len(x.shape) - 3)
        indices = ops.reshape(indices, (indices.shape[0], 1, indices.shape[1], *axes))
        return ops.take_along_axis(x, indices, axis=2)
    import tensorflow as tf

    return tf.gather(x, indices, axis=2, batch_dims=1)


def shape(x):
    """Returns `ops.shape(x)`: an int for each size that is known, else a tensor."""
    if keras.config.backend() != "tensorflow":
        return ops.shape(x)
    import tensorflow as tf

    sizes = tuple(x.shape)
    if None not in sizes:
        return sizes
    # `ops.shape` slices each size by itself.
    dynamic = tf.unstack(tf.shape(x))
    return tuple(
        now if size is None else size for size, now in zip(sizes, dynamic, strict=True)
    )


def view(x, dtype):
    """Returns `ops.view(x, dtype)`, for a dtype of the same size."""
    if keras.config.backend() != "tensorflow":
        return ops.view(x, dtype)
    import tensorflow as tf

    return tf.bitcast(x, dtype)
