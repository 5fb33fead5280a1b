"""Rows and sizes of tensors, by fewer operations of TensorFlow than Keras needs.

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
