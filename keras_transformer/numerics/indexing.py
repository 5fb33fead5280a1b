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


def gather_each(x, indices, axis):
    """Gathers `indices`, int32 `[..., k]`, from an axis of `x`, `[..., n, ...]`.

    The first axes of `x` are those of `indices` but its last. Each of their entries has
    its own indices, which are not negative.
    """
    batch_dims = len(indices.shape) - 1
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        return tf.gather(x, indices, axis=axis, batch_dims=batch_dims)
    axes = (*range(batch_dims, axis), *range(axis + 1, len(x.shape)))
    if axes:
        indices = ops.expand_dims(indices, axes)
    return ops.take_along_axis(x, indices, axis=axis)


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
    """Returns `ops.view(x, dtype)`, for a dtype of the same or half the size.

    Half-size values stand along a new last axis on TensorFlow.
    """
    if keras.config.backend() != "tensorflow":
        return ops.view(x, dtype)
    import tensorflow as tf

    return tf.bitcast(x, dtype)
