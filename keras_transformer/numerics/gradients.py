"""Backend-independent custom gradients for functions of one tensor."""

from keras import ops


def custom_gradient(function):
    """Wraps a function of one tensor in `keras.ops.custom_gradient`, for any backend.

    The function returns its result, and a function from the gradient of the result to
    the gradient of the tensor. The wrapped function returns only the result.
    """

    def portable(x):
        result, gradient = function(x)

        # TensorFlow and JAX pass the upstream gradient by position, PyTorch by name.
        def from_upstream(*arguments, upstream=None):
            return gradient(arguments[-1] if upstream is None else upstream)

        return result, from_upstream

    return ops.custom_gradient(portable)
