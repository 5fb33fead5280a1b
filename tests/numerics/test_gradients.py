"""`custom_gradient` against derivatives worked out by hand."""

import numpy as np
from keras import ops
from layer_checks import gradient

from keras_transformer.numerics.gradients import custom_gradient

X = np.array([[1.5, -2.0], [0.25, 3.0]], "float32")


def test_custom_gradient_replaces_the_derivative():
    """The custom derivative of the square is 5 x instead of 2 x."""

    @custom_gradient
    def square(x):
        return x * x, lambda upstream: upstream * 5.0 * x

    np.testing.assert_array_equal(np.asarray(ops.convert_to_numpy(square(X))), X * X)
    weights = np.array([[1.0, 10.0], [100.0, 1000.0]], "float32")
    found = gradient(lambda x: ops.sum(square(x) * ops.array(weights)), X)
    np.testing.assert_allclose(found, 5 * X * weights)


def test_custom_gradient_composes_with_other_functions():
    """The derivative of sin(2 (2 x + 1)) is 4 cos(2 (2 x + 1)), by the chain rule."""

    @custom_gradient
    def double(x):
        return 2.0 * x, lambda upstream: 2.0 * upstream

    found = gradient(lambda x: ops.sum(ops.sin(double(double(x) + 1.0))), X)
    np.testing.assert_allclose(found, 4 * np.cos(2 * (2 * X + 1)), rtol=1e-5)
