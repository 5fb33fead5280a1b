"""Self-attention restricted to a neighborhood (section 4 of the paper, Table 1)."""

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.masks import combine_masks
from keras_transformer.layers.multi_head_attention import MultiHeadAttention, attention
from keras_transformer.numerics.softmax import masked_softmax

# Sequences are padded to whole blocks, so a model file with a huge window could exhaust
# the memory. Blocks above this size are therefore limited to the sequence's length.
# Smaller blocks keep their static size, even if the sequence's length is dynamic.
_MAX_STATIC_BLOCK = 512


@keras.saving.register_keras_serializable(package="keras_transformer")
class RestrictedSelfAttention(MultiHeadAttention):
    """Multi-head self-attention in which each position attends to `window` positions.

    These are the `(window - 1) // 2` positions before the query, the query itself, and
    the `window // 2` positions after it. With a causal mask, they are the query and the
    `window - 1` positions before it. The sequence is split into blocks that attend to
    themselves and their neighbors, so time and memory grow with length times window.

    In `call`, `query`, `value`, and `key` must be the same sequence, and
    `attention_mask` must have the shape `[batch, 1, length]`. Masks of other shapes,
    and sequences of different static lengths, raise a `ValueError`. With
    `return_attention_scores`, the full matrix of scores is also computed.

    Args:
        num_heads: Number of heads, h.
        key_dim: Width of queries and keys per head, d_k.
        window: Number of positions that each position attends to, r.
        **kwargs: See `MultiHeadAttention`.

    Raises:
        ValueError: If `window` is below 1.

    Examples:
        >>> attention = kt.layers.RestrictedSelfAttention(2, key_dim=4, window=3)
        >>> x = keras.ops.ones((1, 20, 8))
        >>> print(attention(x, x).shape)
        (1, 20, 8)
    """

    def __init__(self, num_heads, key_dim, window, **kwargs):
        super().__init__(num_heads, key_dim, **kwargs)
        if window < 1:
            raise ValueError(f"`window` must be at least 1. Received: {window}.")
        self.window = window

    def attend(self, query, key, value, mask, causal, training, return_scores):
        """Like `MultiHeadAttention.attend`, but over each position's neighborhood."""
        lengths = query.shape[2], key.shape[2]
        if None not in lengths and lengths[0] != lengths[1]:
            raise ValueError(
                "`query` and `value` must be the same sequence. "
                f"Received: lengths {lengths[0]} and {lengths[1]}."
            )
        if mask is not None and mask.shape[1] not in (None, 1):
            raise ValueError(
                "`attention_mask` must have the shape [batch, 1, length]. "
                f"Received: shape {tuple(mask.shape)}."
            )
        before, after = (self.window - 1) // 2, self.window // 2
        if causal:
            before, after = self.window - 1, 0
        # A block is as long as the window's longer side. So the window of each query
        # is within its own block and its two neighbors.
        size = max(before, after, 1)
        # Number of neighboring blocks before and after each block.
        sides = (1, 0 if causal else 1)
        length = ops.shape(query)[2]
        if size > _MAX_STATIC_BLOCK:
            is_static = isinstance(length, int)
            minimum, maximum = (min, max) if is_static else (ops.minimum, ops.maximum)
            # The blocks of an empty sequence have size 1.
            size = minimum(size, maximum(length, 1))
        key_mask = ops.ones((1, length), dtype="bool")
        if mask is not None:
            # `reshape` also checks an axis for queries of unknown size. The mask may
            # have a single column, for all keys.
            mask = ops.reshape(mask, (ops.shape(mask)[0], 1, ops.shape(mask)[2]))
            key_mask = combine_masks(key_mask, mask[:, 0])
        # Splitting pads the mask with zeros, which hide the padding of the keys.
        key_mask = ops.cast(key_mask, "int32")[:, None, :, None]
        key_mask = _join_neighbors(_split_blocks(key_mask, size), sides)
        # [batch or 1, 1, blocks, 1, keys], which broadcasts with the band [size, keys]
        key_mask = ops.cast(ops.swapaxes(key_mask, -1, -2), "bool")
        block_mask = ops.logical_and(key_mask, _band(size, sides, before, after))
        keys = _join_neighbors(_split_blocks(key, size), sides)
        values = _join_neighbors(_split_blocks(value, size), sides)
        queries = _split_blocks(query, size)
        logits, relative = self.position_logits(queries, keys, -sides[0] * size)
        options = self.dropout_layer, training, relative
        context, _ = attention(logits, values, block_mask, *options)
        # [batch, num_heads, blocks, size, value_dim] to [batch, num_heads, length, ...]
        batch, _, num_blocks, _, dim = ops.shape(context)
        flat = (batch, self.num_heads, num_blocks * size, dim)
        context = ops.reshape(context, flat)[:, :, :length]
        if not return_scores:
            return context, None
        mask = combine_masks(mask, _neighborhood(length, before, after))
        scores = masked_softmax(self.position_logits(query, key)[0], mask[:, None])
        return context, scores

    def get_config(self):
        return {**super().get_config(), "window": self.window}


def _neighborhood(length, before, after):
    """Returns a bool mask `[1, length, length]` of the keys in each query's window."""
    positions = ops.arange(length, dtype="int32")
    distance = positions[None, :] - positions[:, None]
    return ops.logical_and(distance >= -before, distance <= after)[None]


def _split_blocks(x, size):
    """Splits `[batch, heads, length, dim]` into `[batch, heads, blocks, size, dim]`.

    The last block is padded with zeros.
    """
    batch, length = ops.shape(x)[0], ops.shape(x)[2]
    heads, dim = x.shape[1], x.shape[3]
    padding = ops.zeros((batch, heads, -length % size, dim), dtype=x.dtype)
    padded = ops.concatenate([x, padding], axis=2)
    # The number of blocks is computed, because `reshape` could not infer it for an
    # empty batch.
    num_blocks = (length + size - 1) // size
    return ops.reshape(padded, (batch, heads, num_blocks, size, dim))


def _join_neighbors(blocks, sides):
    """Joins each block with `sides[0]` blocks before and `sides[1]` after it.

    Returns `[batch, heads, blocks, keys, dim]`, with zeros for missing neighbors.
    """
    zeros = ops.zeros_like(blocks[:, :, :1])
    parts = [blocks]
    if sides[0]:
        parts.insert(0, ops.concatenate([zeros, blocks[:, :, :-1]], axis=2))
    if sides[1]:
        parts.append(ops.concatenate([blocks[:, :, 1:], zeros], axis=2))
    return ops.concatenate(parts, axis=3)


def _band(size, sides, before, after):
    """Returns a bool mask `[size, keys]` of the keys in each query's window.

    The queries are one block. The keys are that block and its neighbors.
    """
    arange = np.arange if isinstance(size, int) else ops.arange
    queries = arange(size)[:, None]
    keys = arange(size * (1 + sum(sides)))[None, :] - sides[0] * size
    return (keys >= queries - before) & (keys <= queries + after)
