import numpy as np
from keras import ops

from keras_transformer.layers import causal_mask
from keras_transformer.layers import padding_mask


def test_padding_mask():
    ids = np.array([[5, 3, 0], [0, 7, 1]])
    np.testing.assert_array_equal(
        ops.convert_to_numpy(padding_mask(ids)),
        [[True, True, False], [False, True, True]],
    )
    np.testing.assert_array_equal(
        ops.convert_to_numpy(padding_mask(ids, pad_id=1)),
        [[True, True, True], [True, True, False]],
    )


def test_causal_mask():
    np.testing.assert_array_equal(
        ops.convert_to_numpy(causal_mask(3, 3)),
        [[[True, False, False], [True, True, False], [True, True, True]]],
    )
