"""Padding masks, causal masks and their combination, against expected arrays."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import causal_mask, padding_mask
from keras_transformer.layers.masks import combine_masks


def test_padding_mask_marks_tokens():
    ids = np.array([[5, 3, 0], [0, 7, 1]])
    np.testing.assert_array_equal(
        ops.convert_to_numpy(padding_mask(ids)),
        [[True, True, False], [False, True, True]],
    )
    np.testing.assert_array_equal(
        ops.convert_to_numpy(padding_mask(ids, pad_id=1)),
        [[True, True, True], [True, True, False]],
    )


@pytest.mark.parametrize(
    ("target_length", "source_length", "expected"),
    [
        (3, 3, [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),
        (2, 4, [[1, 0, 0, 0], [1, 1, 0, 0]]),
        (4, 2, [[1, 0], [1, 1], [1, 1], [1, 1]]),
    ],
)
def test_causal_mask_hides_later_keys(target_length, source_length, expected):
    mask = ops.convert_to_numpy(causal_mask(target_length, source_length))
    assert mask.dtype == bool
    np.testing.assert_array_equal(mask, [expected])


def test_combine_masks_hides_positions_that_any_mask_hides():
    first = np.array([True, True, False])
    second = np.array([1, 0, 1])
    combined = combine_masks(None, first, second)
    np.testing.assert_array_equal(ops.convert_to_numpy(combined), [True, False, False])
    np.testing.assert_array_equal(ops.convert_to_numpy(combine_masks(first)), first)
    assert combine_masks(None, None) is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_float_mask_is_refused(dtype):
    """In such a mask, 0 would mean attend."""
    mask = ops.convert_to_tensor([[0.0, 0.0, -1e9]], dtype)
    with pytest.raises(ValueError, match=rf"bool or integer.*: dtype {dtype}"):
        combine_masks(np.array([[True, True, True]]), mask)
