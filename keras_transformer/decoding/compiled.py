"""The one place where decoding knows which backend it runs on."""

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
