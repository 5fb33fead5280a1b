"""Boolean masks, True = may be attended (sections 3.1 and 3.2.3)."""

from keras import ops


def padding_mask(ids, pad_id=0):
    """Marks the tokens among `ids`, `[batch, length]`: bool, True = token."""
    return ops.not_equal(ids, pad_id)


def causal_mask(target_length, source_length):
    """Returns `[1, target_length, source_length]`, True for keys up to the query."""
    query_positions = ops.arange(target_length, dtype="int32")
    key_positions = ops.arange(source_length, dtype="int32")
    return (key_positions[None, :] <= query_positions[:, None])[None]


def combine_masks(*masks):
    """Returns the conjunction of the masks, skipping `None`; `None` if all are."""
    combined = None
    for mask in masks:
        if mask is not None:
            mask = ops.cast(mask, "bool")
            combined = mask if combined is None else ops.logical_and(combined, mask)
    return combined
