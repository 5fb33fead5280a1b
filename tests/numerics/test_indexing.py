"""Rows of tensors, and products of their vectors, against NumPy."""

import numpy as np
import pytest
from keras import ops
from layer_checks import numpy

from keras_transformer.numerics.indexing import gather_each
from keras_transformer.numerics.matrices import project

GENERATOR = np.random.default_rng(6)


@pytest.mark.parametrize("tail", [(), (4,)])
def test_gather_each_takes_the_indices_of_each_entry(tail):
    x = GENERATOR.normal(size=(2, 3, 7, *tail)).astype("float32")

    def find(indices):
        return numpy(gather_each(ops.array(x), ops.array(indices), axis=2))

    indices = np.array([[6, 0, 3, 3, 1], [2, 5, 4, 0, 6]], "int32")
    expected = [each[:, rows] for each, rows in zip(x, indices, strict=True)]
    np.testing.assert_array_equal(find(indices), expected)
    indices = GENERATOR.integers(7, size=(2, 3, 4), dtype="int32")
    expected = [[x[i, j][indices[i, j]] for j in range(3)] for i in range(2)]
    np.testing.assert_array_equal(find(indices), expected)


@pytest.mark.parametrize("shape", [(5,), (2, 5), (2, 1, 3, 5), (0, 4, 5)])
def test_project_multiplies_each_vector(shape):
    x = GENERATOR.normal(size=(3, *shape)).astype("float32")
    kernel = GENERATOR.normal(size=(5, 7)).astype("float32")
    found = numpy(project(ops.array(x), ops.array(kernel)))
    assert found.shape == (3, *shape[:-1], 7)
    np.testing.assert_allclose(found, x @ kernel, rtol=1e-5, atol=1e-6)
