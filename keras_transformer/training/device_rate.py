"""How fast the device multiplies matrices, for the cost that Table 2 estimates."""

import time

import tensorflow as tf


def sustained_flops(size=2048, repeats=3, precision="float32", at_once=1):
    """Operations a second of a square matrix product on the default device.

    The paper takes a figure for each kind of GPU (footnote 5: 9.5 TFLOP/s for a P100);
    this one is measured, in a fraction of a second.

    Args:
        size: Rows and columns.
        repeats: The fastest of so many counts.
        precision: Dtype of the factors.
        at_once: Products side by side, as many as `TrainingModel.parallel_parts`,
            among which `use_threads` has shared out the cores.
    """
    lefts = tf.cast(tf.random.normal([at_once, size, size]), precision)
    right = tf.cast(tf.random.normal([size, size]), precision)

    @tf.function
    def products():
        # A number of each: it is there when the product is.
        return [tf.matmul(lefts[i], right)[0, 0] for i in range(at_once)]

    fastest = float("inf")
    for repeat in range(repeats + 1):
        start = time.perf_counter()
        for number in products():
            number.numpy()
        # The first compiles.
        if repeat:
            fastest = min(fastest, time.perf_counter() - start)
    return 2.0 * at_once * size**3 / fastest
