"""Functions of one tensor with a gradient of their own, alike on every backend."""

from keras import ops


def own_gradient(function):
    """`keras.ops.custom_gradient` for a function of one tensor.

    TensorFlow and JAX hand the gradient function the upstream gradient by position,
    PyTorch by name, behind the tensors that it saved.

    Args:
        function: Function of a tensor to its result and a function of the gradient
            of the result to that of the tensor.
    """

    def alike(x):
        result, gradient = function(x)

        def of_upstream(*arguments, upstream=None):
            return gradient(arguments[-1] if upstream is None else upstream)

        return result, of_upstream

    return ops.custom_gradient(alike)
