"""Compilation and parallel calls of functions, depending on the Keras backend."""

from concurrent import futures

import keras
import numpy as np

# Length of the shortest rows on JAX.
_SHORTEST = 16


def compile_for_ids(function, num_inputs, model=None, pad_id=0):
    """Compiles a function of `num_inputs` int32 arrays `[rows, length]`.

    The result is a function of the same arguments that returns NumPy arrays with one
    row for each of theirs. TensorFlow traces it once for all shapes. JAX compiles for
    each shape, so it pads the arrays to one of a few. PyTorch does not compile.

    Args:
        function: The function, which may use the weights of `model`.
        num_inputs: Number of arrays.
        model: `Transformer`, or another model, or an `Ensemble`.
        pad_id: Id of padding in all arrays.
    """
    backend = keras.config.backend()
    if backend == "tensorflow":
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
    if backend == "jax":
        function = _compile_for_shapes(function, model, pad_id)
    if backend == "torch":
        import torch

        # Otherwise, results keep the intermediate values of all steps for gradients.
        function = torch.no_grad()(function)

    def run(*ids):
        return keras.tree.map_structure(keras.ops.convert_to_numpy, function(*ids))

    return run


def _compile_for_shapes(function, model, pad_id):
    """Compiles with JAX. The weights are arguments, because constants would be copied.

    Rows are padded with copies of the first one.
    """
    import jax

    models = getattr(model, "models", [] if model is None else [model])
    variables = [
        variable for each in models for variable in getattr(each, "variables", [])
    ]
    limit = getattr(model, "position_limit", None)

    @jax.jit
    def compiled(values, *ids):
        mapping = [*zip(variables, values, strict=True)]
        with keras.StatelessScope(state_mapping=mapping):
            return function(*ids)

    def run(*ids):
        num_rows = len(ids[0])
        values = [variable.value for variable in variables]
        padded = [_pad(np.asarray(each), pad_id, limit) for each in ids]
        results = compiled(values, *padded)
        # JAX would compile the slice of an array on the device for each `num_rows`.
        return keras.tree.map_structure(lambda x: np.asarray(x)[:num_rows], results)

    return run


def _pad(ids, pad_id, limit):
    num_rows, length = ids.shape
    width = few_lengths(length)
    if limit is not None:
        width = max(length, min(width, limit))
    ids = np.pad(ids, [[0, 0], [0, width - length]], constant_values=pad_id)
    # The next power of 2.
    missing = (1 << (num_rows - 1).bit_length()) - num_rows
    return np.concatenate([ids, ids[:1].repeat(missing, axis=0)])


def few_lengths(length):
    """Returns the length to which `compile_for_ids` pads rows of this length."""
    if keras.config.backend() != "jax":
        return length
    return max(_SHORTEST, 1 << (length - 1).bit_length())


def is_jax_on_cpu():
    """Returns whether the backend is JAX and computes on a CPU by default."""
    if keras.config.backend() != "jax":
        return False
    import jax

    return jax.default_backend() == "cpu"


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
