"""Boolean masks, True = attend (sections 3.1 and 3.2.3 of the paper).

The mask of a sequence is `[batch, length]`, True = token. In the layers, `source_mask`
is that of the source, and parameters whose name ends in `mask` and begins with that of
an input are filled in by Keras with the mask that `TokenEmbedding` made. An
`attention_mask` has an axis for the queries: `[batch, 1 or target_length,
source_length]`.
"""

import keras
from keras import ops


def padding_mask(ids, pad_id=0):
    """Returns the mask of padding, bool `[batch, length]`, True at tokens.

    Args:
        ids: `[batch, length]`, integers.
        pad_id: Id of padding.

    Examples:
        >>> mask = kt.layers.padding_mask(keras.ops.convert_to_tensor([[4, 5, 0]]))
        >>> keras.ops.convert_to_numpy(mask).tolist()
        [[True, True, False]]
    """
    return ops.not_equal(ids, pad_id)


def causal_mask(target_length, source_length):
    """Returns the causal mask, bool `[1, target_length, source_length]`.

    Query i attends to keys 0 to i.

    Args:
        target_length: Number of queries, an int or a scalar tensor.
        source_length: Number of keys, an int or a scalar tensor.

    Examples:
        >>> kt.layers.causal_mask(2, 3).numpy().tolist()
        [[[True, False, False], [True, True, False]]]
    """
    query_positions = ops.arange(target_length, dtype="int32")
    key_positions = ops.arange(source_length, dtype="int32")
    return (key_positions[None, :] <= query_positions[:, None])[None]


def combine_masks(*masks):
    """Returns the logical AND of the masks that are not `None`, or `None`."""
    combined = None
    for mask in masks:
        if mask is not None:
            mask = ops.convert_to_tensor(mask)
            dtype = keras.backend.standardize_dtype(mask.dtype)
            # In other libraries, a float mask is added to the logits: 0 means attend.
            if "float" in dtype:
                raise ValueError(
                    "A mask must be bool or integer, True or 1 = attend. Received: "
                    f"dtype {dtype}. Convert masks of 0 and -1e9 by `mask == 0`."
                )
            mask = ops.cast(mask, "bool")
            combined = mask if combined is None else ops.logical_and(combined, mask)
    return combined
