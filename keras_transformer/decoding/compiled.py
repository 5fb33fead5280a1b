"""The one place where decoding knows which backend it runs on."""

from concurrent import futures

import keras


def compiled(function, num_inputs):
    """A function of ids, fast on the backend at hand.

    TensorFlow traces it once for all shapes. JAX and PyTorch run it as it is: JAX
    would compile anew for every shape of a batch, which takes longer than the search.

    Args:
        function: takes `num_inputs` int32 arrays of [rows, ids] and returns a tensor
            or a tuple of them.
        num_inputs: int.

    Returns:
        A function of the same arguments that returns NumPy arrays.
    """
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        rows = tf.TensorSpec([None, None], tf.int32)
        function = tf.function(
            function, input_signature=[rows] * num_inputs, autograph=False
        )

    def run(*ids):
        return keras.tree.map_structure(keras.ops.convert_to_numpy, function(*ids))

    return run


def side_by_side(function, items, at_once):
    """List of pairs of an item and what a function makes of it, in any order.

    Args:
        function: what `compiled` returned, or calls it.
        items: iterable.
        at_once: int, how many are computed at a time, each in a thread. JAX and
            PyTorch take one: their settings belong to the thread they are made in.
    """
    if at_once == 1 or keras.config.backend() != "tensorflow":
        return [(item, function(item)) for item in items]
    # The last are the longest, as a rule: begun first, none is left alone at the end.
    items = list(items)[::-1]
    pool = futures.ThreadPoolExecutor(at_once)
    try:
        return list(zip(items, pool.map(function, items), strict=True))
    finally:
        # Where one has failed, or the user stops, the rest is not begun.
        pool.shutdown(cancel_futures=True)
