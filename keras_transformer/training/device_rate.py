"""How fast the device multiplies matrices, for the cost that Table 2 estimates."""

import time

import tensorflow as tf


def sustained_flops(size=2048, repeats=3, precision="float32"):
    """Operations a second of a square matrix product on the default device.

    The paper takes a figure for each kind of GPU (footnote 5: 9.5 TFLOP/s for a P100);
    this one is measured, in a fraction of a second.

    Args:
        size: Rows and columns.
        repeats: The fastest of so many counts.
        precision: Dtype of the factors.
    """
    left = tf.cast(tf.random.normal([size, size]), precision)
    right = tf.cast(tf.random.normal([size, size]), precision)
    tf.matmul(left, right).numpy()
    fastest = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        # A number of the product: it is there when the product is.
        tf.matmul(left, right)[0, 0].numpy()
        fastest = min(fastest, time.perf_counter() - start)
    return 2.0 * size**3 / fastest
