"""Compilation and parallel calls of functions, depending on the Keras backend."""

from concurrent import futures

import keras


def compile_for_ids(function, num_inputs):
    """Compiles a function of `num_inputs` int32 arrays `[rows, length]` on TensorFlow.

    The result is a function of the same arguments that returns NumPy arrays. TensorFlow
    traces it once for all shapes. JAX would compile again for each batch shape, which
    takes longer than the search.
    """
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        rows = tf.TensorSpec([None, None], tf.int32)
        traced = tf.function(
            function, input_signature=[rows] * num_inputs, autograph=False
        )

        # TensorFlow warns of frequent tracing if it calls several functions for the
        # first time that have the same code, as those of `with_search` do. It does not
        # count the tracing of concrete functions.
        def run_traced(*ids):
            return traced.get_concrete_function()(*map(tf.constant, ids))

        function = run_traced
    if keras.config.backend() == "torch":
        import torch

        # Otherwise, results keep the intermediate values of all steps for gradients.
        function = torch.no_grad()(function)

    def run(*ids):
        return keras.tree.map_structure(keras.ops.convert_to_numpy, function(*ids))

    return run


def shared_constant(array):
    """Converts a large array to a tensor that compiled functions refer to.

    A constant within a graph of TensorFlow would be copied in each of its passes.
    """
    if keras.config.backend() != "tensorflow":
        return keras.ops.convert_to_tensor(array)
    import tensorflow as tf

    with tf.init_scope():
        return tf.constant(array)


def parallel_map(function, items, num_threads):
    """Applies a function of compiled code to items, on several threads.

    Returns a list of (item, result) pairs in any order. JAX and PyTorch use one thread:
    settings such as PyTorch's `no_grad` apply only to the thread that sets them.
    """
    if num_threads == 1 or keras.config.backend() != "tensorflow":
        return [(item, function(item)) for item in items]
    # The last items are usually the longest. Starting with them balances the threads.
    items = list(items)[::-1]
    pool = futures.ThreadPoolExecutor(num_threads)
    try:
        return list(zip(items, pool.map(function, items), strict=True))
    finally:
        # After a failure or an interrupt, no further item starts.
        pool.shutdown(cancel_futures=True)
