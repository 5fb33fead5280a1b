"""Boolean masks, True = may be attended (sections 3.1 and 3.2.3)."""

from keras import ops


def padding_mask(ids, pad_id=0):
    """Marks the tokens among `ids`.

    Args:
        ids: `[batch, length]`, integers.
        pad_id: Id of the padding.

    Returns:
        `[batch, length]`, bool, True = token.
    """
    return ops.not_equal(ids, pad_id)


def causal_mask(target_length, source_length):
    """Lets query i attend to keys up to position i.

    Args:
        target_length: Number of queries.
        source_length: Number of keys, from position 0.

    Returns:
        `[1, target_length, source_length]`, bool.
    """
    query_positions = ops.arange(target_length, dtype="int32")
    key_positions = ops.arange(source_length, dtype="int32")
    return (key_positions[None, :] <= query_positions[:, None])[None]


def combine_masks(*masks):
    """Joins the masks that are not `None` by `&`; `None` if all are."""
    combined = None
    for mask in masks:
        if mask is not None:
            mask = ops.cast(mask, "bool")
            combined = mask if combined is None else ops.logical_and(combined, mask)
    return combined
