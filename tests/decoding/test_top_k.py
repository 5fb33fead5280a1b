"""Block-wise top-k against sorting."""

import numpy as np
import pytest

from keras_transformer.decoding.top_k import top_k

CASES = [(360, 1), (360, 5), (1000, 7), (37, 3), (1009, 4), (12, 12)]


@pytest.mark.parametrize(("size", "k"), CASES)
def test_top_k_matches_sorting(size, k):
    x = np.random.default_rng(size + k).permutation(11 * size).reshape(11, size)
    x = x.astype("float32")
    values, indices = top_k(x, k)
    expected = np.argsort(-x, axis=1)[:, :k]
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, axis=1))


def test_top_k_finds_values_in_one_block():
    x = np.zeros((2, 400), "float32")
    # Blocks have 16 values, so these are all in the third block.
    x[0, 40:47] = [3, 9, 5, 7, 4, 8, 6]
    x[1, [0, 399]] = 2, 1
    values, indices = top_k(x, 2)
    np.testing.assert_array_equal(indices, [[41, 45], [0, 399]])
    np.testing.assert_array_equal(values, [[9, 8], [2, 1]])


@pytest.mark.parametrize("fill", [0.0, -np.inf])
def test_top_k_of_ties_gives_different_indices(fill):
    x = np.full((3, 1000), fill, "float32")
    _, indices = top_k(x, 7)
    assert all(len(set(row)) == 7 for row in np.array(indices))
